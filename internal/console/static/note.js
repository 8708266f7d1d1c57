"use strict";

// Signed notes (c2sp.org/signed-note), for the scripts that verify the log in this browser.
const signedNotes = (() => {
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

  // readNote parses a signed note into its text and its signatures. A signature has a name, a key hash and bytes.
  const readNote = (note) => {
    const end = note.lastIndexOf("\n\n");
    if (end < 0) throw new Error("invalid signed note");
    const signatures = note.slice(end + 2).split("\n").filter(Boolean).map((line) => {
      const [, name, value] = line.split(" ");
      const all = bytesOf(value);
      return { name, hash: all.slice(0, 4), bytes: all.slice(4) };
    });
    return { text: note.slice(0, end + 1), signatures };
  };

  // readKey parses a verifier key, name+hash+base64. It computes the hash itself, from the name, the kind and the bytes.
  const readKey = async (text) => {
    const [name, hash] = text.split("+", 2);
    const key = bytesOf(text.slice(name.length + hash.length + 2));
    const digest = await sha256(utf8(name + "\n"), key);
    return { name, hash: digest.slice(0, 4), kind: key[0], bytes: key.slice(1) };
  };

  // signed reports whether a key of the log has signed the note: true, false, or null if this browser cannot check it.
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

  return { bytesOf, utf8, same, sha256, readNote, signed };
})();
