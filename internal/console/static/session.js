"use strict";

// Warns before the session ends, and carries what somebody has typed over a login. The text stays in this tab, sealed by the
// server for its person: this script fills in the form again, and never sends it.
(() => {
  const body = document.body, place = "brevet-unsent", here = location.pathname + location.search;
  const skew = Date.parse(body.dataset.now) - Date.now();
  const says = document.getElementById("session-says");
  const post = (path, fields) => fetch(path, { method: "POST", body: new URLSearchParams(fields) });
  const drop = () => sessionStorage.removeItem(place);
  const store = (entry) => sessionStorage.setItem(place, JSON.stringify(entry));
  const posts = (form) => form?.getAttribute("method") === "post";

  if (body.classList.contains("on-signed-out")) drop();

  // A form says for whom its page was rendered: somebody else may have logged in since, in another tab.
  const add = (form, name, value) => {
    const field = form.elements.namedItem(name) ?? form.appendChild(Object.assign(document.createElement("input"), { type: "hidden", name }));
    field.value = value;
  };
  document.addEventListener("submit", (e) => {
    const form = e.target;
    if (!posts(form)) return;
    if (body.dataset.person) add(form, "page-person", body.dataset.person);
    add(form, "page-address", form.dataset.page ?? here);
    drop();
  }, true);

  // The page of a form that came too late.
  const unsent = document.getElementById("unsent");
  if (unsent) {
    const login = unsent.querySelector("[data-login]");
    login.removeAttribute("target");
    unsent.querySelector("[data-again]").hidden = true;
    login.addEventListener("click", () => store({
      page: unsent.dataset.page, person: unsent.dataset.person, action: unsent.getAttribute("action"), kept: unsent.elements["page-kept"].value,
    }));
  }
  if (!body.dataset.person) return;

  const fields = (form, name) => [...form.elements].filter((e) => e.name === name);
  const chosen = (e) => e.type === "checkbox" || e.type === "radio";

  // moved reports whether a hidden field of a page that is newer has another value, such as the base of a draft: with that value,
  // the server could not tell that somebody has changed the base since. Fields without a value are for signatures of a script.
  const moved = (e, value) => e.type === "hidden" && e.hasAttribute("value") && e.value !== value;

  // fits reports whether a form has a place for every value.
  const fits = (form, kept) => Object.entries(kept).every(([name, values]) => {
    const own = fields(form, name);
    if (own.some((e) => e.type === "submit")) return own.some((e) => values.includes(e.value));
    if (own.some((e, i) => moved(e, values[i]))) return false;
    return own.length > 0 && (own.some(chosen) || own.length === values.length);
  });

  const fill = (form, kept) => {
    let first = null;
    for (const [name, values] of Object.entries(kept)) {
      fields(form, name).forEach((e, i) => {
        if (e.type === "hidden" || e.type === "submit") return;
        if (chosen(e)) e.checked = values.includes(e.value);
        else e.value = values[i];
        if (!chosen(e) && e.value !== "") first ??= e;
        if (chosen(e) && e.checked) e.closest("details")?.setAttribute("open", "");
      });
    }
    for (let d = form.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
    (first ?? form.querySelector("button:not([disabled])")).focus();
  };

  const tell = (form, text) => {
    form.prepend(Object.assign(document.createElement("p"), { className: "notice", textContent: text }));
    says.textContent = text;
  };

  const restore = async (entry) => {
    const answer = await post("/session/kept", { "page-kept": entry.kept, "page-action": entry.action });
    if (!answer.ok) return answer.status < 500 ? drop() : undefined;
    const kept = await answer.json();
    const form = [...document.forms].find((f) => posts(f) && f.getAttribute("action") === entry.action && fits(f, kept));
    if (form) {
      fill(form, kept);
      tell(form, "What you typed is back. Nothing was sent: check the form and send it.");
      return;
    }
    // The page does not show the form, for example after a check of a draft.
    const again = Object.assign(document.createElement("form"), { className: "card" });
    again.setAttribute("method", "post");
    again.setAttribute("action", entry.action);
    again.dataset.page = entry.page;
    add(again, "page-kept", entry.kept);
    again.append(Object.assign(document.createElement("button"), { textContent: "Show the kept form" }));
    document.querySelector("h1").after(again);
    tell(again, "A form was kept in this browser and not sent. You see what it contains before you send it.");
  };

  const entry = JSON.parse(sessionStorage.getItem(place));
  if (entry && entry.person !== body.dataset.person) drop();
  else if (entry?.page === here) restore(entry);

  // The form that somebody has typed in last is the one that a login keeps.
  let typed = null;
  document.addEventListener("input", (e) => { if (posts(e.target.form)) typed = e.target.form; });

  const panel = document.getElementById("session");
  const [left, means, stayButton, renewButton] = ["left", "means", "stay", "renew"].map((name) => panel.querySelector(`[data-${name}]`));
  const warn = Number(body.dataset.warn);
  const channel = new BroadcastChannel("brevet-session");
  let over = false, asked = Date.now(), said = "";

  const announce = (text) => {
    if (said === text) return;
    said = text;
    says.textContent = text;
  };

  const end = () => {
    over = true;
    left.textContent = "Your session has ended.";
    means.textContent = typed ? "What you typed is still here. It is kept when you log in again." : "";
    stayButton.hidden = true;
    renewButton.hidden = false;
    panel.hidden = false;
    announce(`${left.textContent} ${means.textContent}`);
  };

  const spell = (seconds) => seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;

  const look = () => {
    if (over) return;
    const [idle, ends] = [Date.parse(body.dataset.idle), Date.parse(body.dataset.ends)];
    const seconds = Math.ceil((Math.min(idle, ends) - Date.now() - skew) / 1000);
    if (seconds <= 0) return end();
    panel.hidden = seconds > warn;
    if (panel.hidden) return;
    left.textContent = `Your session ends in ${spell(seconds)}.`;
    renewButton.hidden = idle < ends;
    stayButton.hidden = !renewButton.hidden;
    means.textContent = stayButton.hidden ? "It has reached its longest duration. What you have typed is kept when you log in again." : "It ends without activity.";
    const step = [10, 30, 60].find((s) => seconds <= s) ?? warn;
    announce(`Your session ends in less than ${spell(step)}. ${means.textContent}`);
  };

  const know = (times) => {
    Object.assign(body.dataset, times);
    over = false;
    said = "";
    look();
  };

  const stay = async () => {
    asked = Date.now();
    const answer = await post("/session/stay", {}).catch(() => null); // the network may be down; the next call tries again
    if (answer?.status === 401) return end();
    if (!answer?.ok) return;
    const times = await answer.json();
    know(times);
    channel.postMessage({ person: body.dataset.person, times });
  };

  const renew = async () => {
    const page = body.classList.contains("on-trouble") ? "/" : here;
    if (typed?.isConnected) {
      const action = typed.getAttribute("action");
      const kept = [...new FormData(typed)].filter(([, value]) => typeof value === "string");
      const button = typed.querySelector("button[name]:not([disabled])");
      if (button) kept.push([button.name, button.value]);
      const answer = await post("/session/keep", [...kept, ["page-person", body.dataset.person], ["page-action", action]]);
      if (!answer.ok) {
        typed = null;
        means.textContent = "The text cannot be kept: it is too long, or it looks like it contains a secret. Copy what you need, then log in again.";
        return announce(means.textContent);
      }
      store({ page, action, ...(await answer.json()) });
    }
    location.assign(`/login?return=${encodeURIComponent(page)}`);
  };

  stayButton.addEventListener("click", stay);
  renewButton.addEventListener("click", renew);
  for (const kind of ["keydown", "pointerdown"]) {
    document.addEventListener(kind, () => { if (!over && Date.now() - asked > warn * 500) stay(); });
  }
  channel.addEventListener("message", (e) => { if (e.data.person === body.dataset.person) know(e.data.times); });
  channel.postMessage({ person: body.dataset.person, times: { idle: body.dataset.idle, ends: body.dataset.ends } });
  document.addEventListener("htmx:response:error", (e) => { if (e.detail?.ctx?.response?.status === 401) end(); });
  setInterval(look, 1000);
  look();
})();
