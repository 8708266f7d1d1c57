"use strict";

// Computes the digest of a credential in this browser. The field of the credential has no name, so the form does not send it,
// and the script empties it before the form is sent.
(() => {
  const secret = document.getElementById("secret");
  const digest = document.getElementById("digest");
  const finder = document.getElementById("finder");
  const problem = document.getElementById("problem");
  if (!secret) return;
  document.getElementById("local").hidden = false;

  // part decodes base64url without padding. It returns null if the text is not base64url.
  const part = (text) => {
    if (!/^[A-Za-z0-9_-]*$/.test(text) || text.length % 4 === 1) return null;
    const base64 = text.replaceAll("-", "+").replaceAll("_", "/");
    return Uint8Array.from(atob(base64.padEnd(Math.ceil(base64.length / 4) * 4, "=")), (c) => c.charCodeAt(0));
  };

  const isJSON = (bytes) => {
    try {
      JSON.parse(new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes));
      return true;
    } catch {
      return false;
    }
  };

  // claims returns the payload of a JWT (RFC 7515), or null if the text is no JWT. It verifies no signature.
  const claims = (text) => {
    const parts = text.split(".");
    if (parts.length !== 3) return null;
    const [header, payload] = parts.slice(0, 2).map(part);
    return header && payload && isJSON(header) && isJSON(payload) ? payload : null;
  };

  finder.addEventListener("submit", async (event) => {
    if (secret.value === "") return;
    event.preventDefault();
    const text = secret.value.replace(/[\r\n]+$/, "");
    if (text === "" || text.length > 65536) {
      problem.textContent = "Invalid credential: it is empty or longer than 64 KiB.";
      return;
    }
    const sum = new Uint8Array(await crypto.subtle.digest("SHA-256", claims(text) ?? new TextEncoder().encode(text)));
    secret.value = "";
    digest.value = [...sum].map((b) => b.toString(16).padStart(2, "0")).join("");
    finder.submit();
  });
})();
