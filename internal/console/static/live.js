"use strict";

// Refreshes the live credentials every 5 seconds while the page is visible, and draws the figures over time.
(() => {
  const chart = document.getElementById("chart");
  const figures = document.getElementById("figures");
  const lines = [["issued", "Issued", []], ["denied", "Denied", [6, 4]], ["pending", "Pending", [2, 3]], ["ended", "Revoked", [10, 4, 2, 4]]];
  let plot = null;
  let known = null;

  const colour = (name) => getComputedStyle(chart).getPropertyValue(`--rate-${name}`).trim();

  const columns = (rates) => [rates.times, ...lines.map(([name]) => rates[name])];

  const draw = () => {
    plot?.destroy();
    const axis = { stroke: colour("text"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 } };
    plot = new uPlot({
      width: Math.max(chart.clientWidth, 200), height: 240, legend: { live: false }, cursor: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toISOString().slice(11, 16)) }, axis],
      scales: { y: { range: (_, __, most) => [0, Math.max(most, 5)] } },
      series: [{}, ...lines.map(([name, label, dash]) => ({ label, stroke: colour(name), width: 2, dash, points: { show: false } }))],
    }, columns(known), chart);
  };

  const cell = (kind, text) => Object.assign(document.createElement(kind), { textContent: text, className: kind === "td" ? "number" : "" });

  // tell writes the same figures into the table, newest first.
  const tell = () => figures.replaceChildren(...known.times.map((time, i) => {
    const row = document.createElement("tr");
    const begin = cell("th", new Date(time * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC");
    begin.scope = "row";
    row.append(begin, ...lines.map(([name]) => cell("td", known[name][i])));
    return row;
  }).reverse());

  const look = async () => {
    let answer;
    try {
      answer = await fetch(chart.dataset.rates);
    } catch {
      return; // the network is down; the next call tries again
    }
    if (!answer.ok) return;
    const rates = await answer.json();
    if (JSON.stringify(rates) === JSON.stringify(known)) return;
    const first = known === null;
    known = rates;
    tell();
    if (first) draw(); else plot.setData(columns(known));
  };

  setInterval(() => {
    if (document.hidden) return;
    document.getElementById("live")?.dispatchEvent(new Event("look"));
    look();
  }, 5000);

  look();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => known && draw());
  new ResizeObserver(() => plot?.setSize({ width: Math.max(chart.clientWidth, 200), height: 240 })).observe(chart);
})();
