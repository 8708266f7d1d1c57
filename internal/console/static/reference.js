"use strict";

// Filters while the reader types: it hides what lacks a word. Without scripts the page shows everything.
(() => {
  const box = document.getElementById("filter");
  if (!box) return;
  const said = document.getElementById("filtered");
  const all = [...document.querySelectorAll("[data-find]")].map((e) => [e, e.textContent.toLowerCase()]);
  const groups = document.querySelectorAll("[data-group]");

  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [e, text] of all) {
      e.hidden = !words.every((w) => text.includes(w));
      if (!e.hidden) shown++;
    }
    for (const g of groups) g.hidden = !g.querySelector("[data-find]:not([hidden])");
    said.textContent = words.length === 0 ? "" : shown === 0 ? "no matches" : `${shown} of ${all.length}`;
  };

  box.closest(".filter").hidden = false;
  box.addEventListener("input", filter);
  filter();
})();
