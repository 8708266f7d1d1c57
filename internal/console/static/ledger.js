"use strict";

// Makes this browser a witness: it stores the last checkpoint of a log that it saw, and checks that the next one is consistent
// with it (RFC 9162, 2.1.4.2). It accepts only signed checkpoints. So every browser that visited before detects it if somebody
// changes or truncates the log.
(() => {
  const data = document.getElementById("log-note");
  const verdict = document.getElementById("growth");
  if (!data || !verdict) return;
  const { bytesOf, same, readNote, signed } = signedNotes;
  const { note, keys } = JSON.parse(data.textContent);
  const [origin, size, root] = note.split("\n");
  const now = { size: Number(size), root };
  const place = `brevet-checkpoint:${origin}`;
  const node = async (left, right) => new Uint8Array(await crypto.subtle.digest("SHA-256", new Uint8Array([1, ...left, ...right])));

  // continues reports whether the tree of one size and root is a prefix of the other tree.
  const continues = async (before, after, hashes) => {
    let path = hashes.map(bytesOf);
    const [first, second] = [bytesOf(before.root), bytesOf(after.root)];
    if (Number.isInteger(Math.log2(before.size))) path = [first, ...path];
    if (path.length === 0) return false;
    let [fn, sn] = [before.size - 1, after.size - 1];
    const up = () => { [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)]; };
    while (fn % 2 === 1) up();
    let [fr, sr] = [path[0], path[0]];
    for (const hash of path.slice(1)) {
      if (sn === 0) return false;
      if (fn % 2 === 1 || fn === sn) {
        [fr, sr] = [await node(hash, fr), await node(hash, sr)];
        while (fn % 2 === 0 && fn !== 0) up();
      } else {
        sr = await node(sr, hash);
      }
      up();
    }
    return sn === 0 && same(fr, first) && same(sr, second);
  };

  const say = (good, text) => {
    verdict.className = good ? "notice" : "warning";
    verdict.setAttribute("role", good ? "status" : "alert");
    verdict.textContent = text;
  };
  const alarm = (text) => say(false, `TAMPERING DETECTED, or this is another log with the same name. ${text} Do not trust this log. Keep the state of this browser and contact your auditor. Compare with a witness, and run brevet audit verify.`);
  const keep = () => localStorage.setItem(place, JSON.stringify(now));

  const check = async () => {
    const vouched = await signed(readNote(note), keys || []);
    if (vouched === false) return alarm(`The checkpoint of ${size} entries has no valid signature of the log.`);
    if (vouched === null) return say(false, "The signature of this checkpoint was not checked: this browser does not support Ed25519, or the keys of the log are unavailable. The checkpoint is neither compared nor stored. Reload the page.");
    const text = localStorage.getItem(place);
    if (text === null) {
      keep();
      say(true, `First checkpoint of this log in this browser: ${now.size} entries. The browser stores it and checks each later checkpoint against it.`);
      return;
    }
    const before = JSON.parse(text);
    const seen = `This browser has seen a checkpoint of ${before.size} entries with the root ${before.root}`;
    if (now.size < before.size) return alarm(`${seen}, and now there are ${now.size}.`);
    if (now.size === before.size) {
      if (now.root !== before.root) return alarm(`${seen}, and now the root of as many is ${now.root}.`);
      say(true, `No new entries since the last visit of this browser: the checkpoint of ${now.size} entries is unchanged.`);
      return;
    }
    const answer = await fetch(`/ledger/growth?from=${before.size}&to=${now.size}`);
    if (!answer.ok) return say(false, "The consistency proof is unavailable, which proves nothing yet. Reload the page.");
    if (!(await continues(before, now, await answer.json()))) return alarm(`${seen}, and the current log does not contain it.`);
    keep();
    say(true, `Verified in this browser: the log of ${now.size} entries begins with the ${before.size} entries of the last visit. None of them was changed or removed.`);
  };
  check().catch((e) => alarm(`The stored checkpoint or the proof is unreadable (${e.message}).`));
})();
