"use strict";

// Times that run: what is left until then, told anew each second. Without scripts pages say what was left when they were made.
(() => {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  const lasting = (seconds) => {
    for (const [i, [length, name]] of units.entries()) {
      const n = Math.floor(seconds / length);
      if (n === 0) continue;
      const next = units[i + 1];
      const rest = next ? Math.floor((seconds % length) / next[0]) : 0;
      return `${n} ${name}` + (rest > 0 ? ` ${rest} ${next[1]}` : "");
    }
    return "0 s";
  };

  setInterval(() => {
    for (const e of document.querySelectorAll("time[data-left]")) {
      const seconds = Math.round((Date.parse(e.dateTime) - Date.now()) / 1000);
      const text = seconds > 0 ? `${lasting(seconds)} left` : "over";
      if (e.textContent !== text) e.textContent = text;
    }
  }, 1000);
})();
