"use strict";

// Shows the current section of the navigation on narrow screens, and updates relative times each second. Without scripts, pages show the times relative to when the server rendered them. The
// clock is that of the server: data-now corrects a browser's clock that is wrong.
(() => {
  const skew = Date.parse(document.body.dataset.now) - Date.now();

  const spell = (seconds, exact) => {
    const minutes = Math.floor((seconds % 3600) / 60), hours = Math.floor(seconds / 3600), days = Math.floor(seconds / 86400);
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${minutes} min`;
    if (seconds < 86400) return exact && minutes > 0 ? `${hours} h ${minutes} min` : `${hours} h`;
    return days === 1 ? "1 day" : `${days} days`;
  };

  const relative = (time) => {
    const seconds = Math.trunc((Date.parse(time) - Date.now() - skew) / 1000);
    if (seconds === 0) return "now";
    return seconds > 0 ? `in ${spell(seconds, true)}` : `${spell(-seconds, false)} ago`;
  };

  document.querySelector(".sections [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

  setInterval(() => {
    for (const e of document.querySelectorAll("time[title]")) {
      const text = relative(e.dateTime);
      if (e.textContent !== text) e.textContent = text;
    }
  }, 1000);
})();
