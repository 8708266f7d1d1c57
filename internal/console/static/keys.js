"use strict";

// Keyboard shortcuts that move between requests. No shortcut casts a vote. They can be turned off, because speech input
// triggers them by accident (WCAG 2.1.4).
(() => {
  const dialog = document.getElementById("keys"), show = document.getElementById("show-keys"), use = document.getElementById("use-keys");
  if (!dialog) return;
  use.checked = localStorage.getItem("keys") !== "off";
  use.addEventListener("change", () => localStorage.setItem("keys", use.checked ? "on" : "off"));
  show.hidden = false;
  show.addEventListener("click", () => dialog.showModal());

  const typing = (e) => e.target.closest("input, textarea, select, [contenteditable]");

  const move = (by) => {
    const titles = [...document.querySelectorAll("#inbox article h2 a")];
    if (titles.length === 0) return;
    const here = document.activeElement.closest("article");
    const at = titles.findIndex((title) => here && here.contains(title));
    const next = at < 0 ? (by > 0 ? 0 : titles.length - 1) : Math.min(Math.max(at + by, 0), titles.length - 1);
    titles[next].focus();
    titles[next].scrollIntoView({ block: "nearest" });
  };

  addEventListener("keydown", (e) => {
    if (!use.checked || dialog.open || e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || typing(e)) return;
    if (e.key === "j") move(1);
    else if (e.key === "k") move(-1);
    else if (e.key === "?") dialog.showModal();
    else return;
    e.preventDefault();
  });
})();
