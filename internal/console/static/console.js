"use strict";

// Countdowns, updated each second. Without scripts, pages show the time left when the server rendered them.
(() => {
  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

  const lasting = (seconds) => {
    for (const [i, [length, name]] of units.entries()) {
      const n = Math.floor(seconds / length);
      if (n === 0) continue;
      const next = units[i + 1];
      const rest = next ? Math.floor((seconds % length) / next[0]) : 0;
      return `${n}${name}` + (rest > 0 ? ` ${rest}${next[1]}` : "");
    }
    return "0s";
  };

  setInterval(() => {
    for (const e of document.querySelectorAll("time[data-left]")) {
      const seconds = Math.round((Date.parse(e.dateTime) - Date.now()) / 1000);
      const text = seconds > 0 ? `in ${lasting(seconds)}` : "expired";
      if (e.textContent !== text) e.textContent = text;
    }
  }, 1000);
})();
