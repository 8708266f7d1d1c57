"use strict";

// Verifies in this browser that the log includes the entries of a record: the hash of each entry (RFC 6962, 2.1), its path to
// the root of the checkpoint, and the signature of the checkpoint (c2sp.org/signed-note). It sends nothing to the server.
(() => {
  const verdict = document.getElementById("proof-verdict");
  const steps = document.getElementById("proof-steps");
  if (!verdict || !steps) return;

  const { bytesOf, utf8, same, sha256, readNote, signed } = signedNotes;

  // rootFrom returns the root that a leaf and its proof lead to (RFC 9162, 2.1.3.2), or null if the proof has another length.
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
      ? `the signature of ${of}. ${keys.length ? "This browser does not support Ed25519" : "The keys of the log are unavailable"}; all other checks still run.`
      : `${of}, ${holds ? "has a valid signature of the log" : "has no valid signature of the log"}.`);
  };

  const checkEntry = async (entry, ids, note) => {
    const [, size, root] = note.text.split("\n");
    const leaf = await sha256([0], utf8(entry.body));
    const led = await rootFrom(leaf, entry.index, Number(size), (entry.proof || []).map(bytesOf));
    let body = {};
    try {
      body = JSON.parse(entry.body);
    } catch {} // then the entry belongs to no record
    const holds = led !== null && same(led, bytesOf(root)) && ids.includes(body.id);
    const hex = [...leaf].map((b) => b.toString(16).padStart(2, "0")).join("");
    return say(holds, ids.includes(body.id)
      ? `entry ${entry.index} (${body.kind}), byte for byte, ${holds ? "is included in the log" : "is not included in the log"}: its hash ${hex} ${holds ? "leads" : "does not lead"} to that root over ${(entry.proof || []).length} hashes.`
      : `entry ${entry.index} belongs to another record.`);
  };

  // inBody reads the values that the page shows from the first entry of a record.
  const inBody = new Map([
    ["spiffe_id", (body) => body.subject.spiffe_id], ["scope", (body) => body.request.scope],
    ["task", (body) => body.request.task], ["decision", (body) => body.decision.outcome],
  ]);

  // checkShown compares the values on the page with the entries.
  const checkShown = (receipt, shown) => {
    const bodies = receipt.entries.map((entry) => JSON.parse(entry.body));
    const begun = bodies.find((body) => body.id === receipt.issuance && body.subject && body.request && body.decision);
    if (!begun) return say(false, "no entry contains the request and the decision.");
    const others = [...inBody].filter(([name, read]) => shown[name] !== read(begun)).map(([name]) => name);
    return say(others.length === 0, others.length === 0
      ? "the sandbox, task, scope and decision on this page match the entry."
      : `this page differs from the entry: ${others.join(", ")}.`);
  };

  const verdicts = {
    holds: ["notice", "Verified in this browser: the log includes the entries of this record, byte for byte."],
    open: ["unchecked", "Partly verified in this browser: the signature of the log was not checked. Reload the page, or check the receipt with brevet audit verify."],
    broken: ["warning", "Invalid proof: this page differs from the log. Contact your auditor."],
  };

  const check = async (data) => {
    steps.replaceChildren();
    const results = [];
    try {
      const note = readNote(data.receipt.checkpoint);
      const ids = [data.receipt.issuance, data.receipt.approves].filter(Boolean);
      results.push(await checkSignature(note, data.keys || []));
      for (const entry of data.receipt.entries) results.push(await checkEntry(entry, ids, note));
      results.push(checkShown(data.receipt, data.shown));
    } catch (e) {
      results.push(say(false, `the proof is unreadable (${e.message}).`));
    }
    const found = results.includes(false) ? "broken" : results.includes(null) ? "open" : "holds";
    [verdict.className, verdict.textContent] = verdicts[found];
  };

  const read = () => JSON.parse(document.getElementById("proof-data").textContent);

  // changed changes one digit of the first entry, as an attacker could.
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
