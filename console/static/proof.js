"use strict";

// Checks in this browser that the entries of a record are in the log, as they are shown: the hash of each (RFC 6962, 2.1), its
// way to the root of the checkpoint, and the signature of the checkpoint (c2sp.org/signed-note). Nothing is asked of the server.
(() => {
  const verdict = document.getElementById("proof-verdict");
  const steps = document.getElementById("proof-steps");
  if (!verdict || !steps) return;

  const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const utf8 = (text) => new TextEncoder().encode(text);
  const same = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

  const sha256 = async (...parts) => {
    const all = new Uint8Array(parts.reduce((n, p) => n + p.length, 0));
    let at = 0;
    for (const p of parts) {
      all.set(p, at);
      at += p.length;
    }
    return new Uint8Array(await crypto.subtle.digest("SHA-256", all));
  };

  // rootFrom is the root that a leaf and its proof lead to (RFC 9162, 2.1.3.2), or null when the proof is not for that place.
  const rootFrom = async (leaf, index, size, path) => {
    let [fn, sn, r] = [index, size - 1, leaf];
    if (index >= size) return null;
    for (const p of path) {
      if (sn === 0) return null;
      if (fn % 2 === 1 || fn === sn) {
        r = await sha256([1], p, r);
        while (fn % 2 === 0 && fn !== 0) [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
      } else {
        r = await sha256([1], r, p);
      }
      [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
    }
    return sn === 0 ? r : null;
  };

  // readNote takes a signed note apart into its text and its signatures, each with name, key hash and bytes.
  const readNote = (note) => {
    const end = note.lastIndexOf("\n\n");
    if (end < 0) throw new Error("it is no signed note");
    const signatures = note.slice(end + 2).split("\n").filter(Boolean).map((line) => {
      const [, name, value] = line.split(" ");
      const all = bytesOf(value);
      return { name, hash: all.slice(0, 4), bytes: all.slice(4) };
    });
    return { text: note.slice(0, end + 1), signatures };
  };

  // readKey takes a verifier's key apart: name+hash+base64. Its hash is of its name, its kind and its bytes.
  const readKey = async (text) => {
    const [name, hash] = text.split("+", 2);
    const key = bytesOf(text.slice(name.length + hash.length + 2));
    const digest = await sha256(utf8(name + "\n"), key);
    return { name, hash: digest.slice(0, 4), kind: key[0], bytes: key.slice(1) };
  };

  // signed tells whether a key of the log has signed the note: true, false, or null when this browser cannot tell.
  const signed = async (note, keys) => {
    for (const text of keys) {
      const key = await readKey(text);
      for (const s of note.signatures.filter((s) => s.name === key.name && same(s.hash, key.hash))) {
        if (key.kind !== 1) return null;
        let imported;
        try {
          imported = await crypto.subtle.importKey("raw", key.bytes, { name: "Ed25519" }, false, ["verify"]);
        } catch {
          return null;
        }
        if (await crypto.subtle.verify({ name: "Ed25519" }, imported, s.bytes, utf8(note.text))) return true;
      }
    }
    return keys.length === 0 ? null : false;
  };

  const marks = new Map([[true, ["✓", "Holds: "]], [false, ["✗", "Does not hold: "]], [null, ["–", "Not checked: "]]]);

  const say = (holds, text) => {
    const [mark, word] = marks.get(holds);
    const sign = Object.assign(document.createElement("span"), { textContent: mark + " ", ariaHidden: "true" });
    const strong = Object.assign(document.createElement("strong"), { textContent: word });
    const step = document.createElement("li");
    step.className = holds === false ? "broken" : "";
    step.append(sign, strong, text);
    steps.append(step);
    return holds;
  };

  const checkSignature = async (note, keys) => {
    const [origin, size, root] = note.text.split("\n");
    const holds = await signed(note, keys);
    const of = `the checkpoint of ${origin}, of ${size} entries with the root ${root}`;
    return say(holds, holds === null
      ? `whether the log has signed ${of}. ${keys.length ? "This browser has no Ed25519" : "The keys of the log cannot be asked at the moment"}; the rest is checked all the same.`
      : `${of}, ${holds ? "is signed by a key of the log" : "is signed by no key of the log"}.`);
  };

  const checkEntry = async (entry, ids, note) => {
    const [, size, root] = note.text.split("\n");
    const leaf = await sha256([0], utf8(entry.body));
    const led = await rootFrom(leaf, entry.index, Number(size), (entry.proof || []).map(bytesOf));
    let body = {};
    try {
      body = JSON.parse(entry.body);
    } catch {} // it is of nothing then
    const holds = led !== null && same(led, bytesOf(root)) && ids.includes(body.id);
    const hex = [...leaf].map((b) => b.toString(16).padStart(2, "0")).join("");
    return say(holds, ids.includes(body.id)
      ? `entry ${entry.index} (${body.kind}), byte for byte, ${holds ? "is at its place in the log" : "is not in the log, or not so"}: its hash ${hex} ${holds ? "leads" : "does not lead"} to that root over ${(entry.proof || []).length} hashes.`
      : `entry ${entry.index} is of something else.`);
  };

  const check = async (data) => {
    steps.replaceChildren();
    const results = [];
    try {
      const note = readNote(data.receipt.checkpoint);
      const ids = [data.receipt.issuance, data.receipt.approves].filter(Boolean);
      results.push(await checkSignature(note, data.keys || []));
      for (const entry of data.receipt.entries) results.push(await checkEntry(entry, ids, note));
    } catch (e) {
      results.push(say(false, `the proof cannot be read (${e.message}).`));
    }
    const broken = results.includes(false);
    verdict.className = broken ? "warning" : "notice";
    verdict.textContent = broken
      ? "This proof does not hold. What came here is not what the log has: tell whoever audits it."
      : "This browser has checked it: the entries of this record are in the log, byte for byte.";
  };

  const read = () => JSON.parse(document.getElementById("proof-data").textContent);

  // changed flips one digit of the first entry, as somebody could who changes the record.
  const changed = (data) => {
    const body = data.receipt.entries[0].body;
    const at = body.search(/[0-9]/);
    data.receipt.entries[0].body = body.slice(0, at) + ((Number(body[at]) + 1) % 10) + body.slice(at + 1);
    return data;
  };

  for (const [id, data] of [["proof-again", read], ["proof-change", () => changed(read())]]) {
    const button = document.getElementById(id);
    button.hidden = false;
    button.addEventListener("click", () => check(data()));
  }
  check(read());
})();
