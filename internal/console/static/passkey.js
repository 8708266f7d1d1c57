"use strict";

// Creates passkeys and signs approvals with them. The server verifies both.
(() => {
  const bytes = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
  const text = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const known = (list) => list.map((one) => ({ ...one, id: bytes(one.id) }));

  const words = {
    NotAllowedError: "The request was cancelled or timed out, or none of your passkeys is available.",
    InvalidStateError: "This device already has a passkey for this console.",
    SecurityError: "Passkeys do not work at this address. Open the console at the address that the operator published.",
    NotSupportedError: "This device does not support a passkey type that Brevet accepts.",
  };

  const answer = (credential, response) => JSON.stringify({
    id: credential.id, rawId: text(credential.rawId), type: credential.type,
    authenticatorAttachment: credential.authenticatorAttachment ?? undefined, clientExtensionResults: {}, response,
  });

  const assert = async (challenge, rpId, allowCredentials) => {
    const signed = await navigator.credentials.get({ publicKey: {
      challenge, rpId, allowCredentials, userVerification: "required", timeout: 120000,
    } });
    return answer(signed, {
      clientDataJSON: text(signed.response.clientDataJSON), authenticatorData: text(signed.response.authenticatorData),
      signature: text(signed.response.signature), userHandle: signed.response.userHandle ? text(signed.response.userHandle) : undefined,
    });
  };

  const make = async (form) => {
    const reply = await fetch("/you/passkeys/challenge", { method: "POST" });
    if (!reply.ok) throw new Error("The console did not start the registration. Reload this page.");
    const options = await reply.json();
    options.challenge = bytes(options.challenge);
    options.user.id = bytes(options.user.id);
    options.excludeCredentials = known(options.excludeCredentials);
    // A person with a passkey must use it to add another one: a session alone is not enough.
    if (options.excludeCredentials.length > 0) form.elements.assertion.value = await assert(options.challenge, options.rp.id, options.excludeCredentials);
    const made = await navigator.credentials.create({ publicKey: options });
    form.elements.response.value = answer(made, {
      clientDataJSON: text(made.response.clientDataJSON), attestationObject: text(made.response.attestationObject),
      transports: made.response.getTransports(),
    });
  };

  const sign = async (form) => {
    form.elements.assertion.value = await assert(
      bytes(form.dataset.challenge), form.dataset.site, known(JSON.parse(form.dataset.credentials)));
  };

  const told = (form, what) => {
    const says = form.querySelector("[data-says]");
    says.textContent = what;
    says.hidden = what === "";
  };

  for (const [selector, act] of [["form[data-makes]", make], ["form[data-challenge]", sign]]) {
    for (const form of document.querySelectorAll(selector)) {
      let ready = false;
      form.addEventListener("submit", async (e) => {
        if (ready) return;
        e.preventDefault();
        const button = e.submitter;
        told(form, "");
        button.setAttribute("aria-busy", "true");
        try {
          if (!window.PublicKeyCredential) throw new Error("This browser does not support passkeys. Use another browser.");
          await act(form);
          ready = true;
          form.requestSubmit(button);
        } catch (error) {
          told(form, (words[error.name] ?? error.message) + " Nothing was sent.");
        } finally {
          button.removeAttribute("aria-busy");
        }
      });
    }
  }
})();
