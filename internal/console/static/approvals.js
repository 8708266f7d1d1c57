"use strict";

// Updates the list of pending requests. The server renders the list; this script only decides when to fetch it. It does not
// fetch it while somebody decides, because nothing may move under a finger.
(() => {
  const inbox = () => document.getElementById("inbox");
  if (!inbox()) return;
  const said = document.getElementById("said"), show = document.getElementById("show-new");
  const plain = document.title;
  let fresh = 0;

  const count = (n) => { document.title = n > 0 ? `(${n}) ${plain}` : plain; };
  const requests = (n) => n === 1 ? "1 request" : `${n} requests`;

  const deciding = () => {
    const at = document.activeElement;
    return inbox().querySelector("details[open]") || (inbox().contains(at) && at.closest("form"));
  };

  const refresh = () => {
    fresh = 0;
    show.hidden = true;
    htmx.trigger(inbox(), "refresh");
  };

  const tell = (news) => {
    count(news.waiting);
    const parts = [];
    if (news.come > 0) parts.push(`${requests(news.come)} arrived.`);
    if (news.gone > 0) parts.push(`${requests(news.gone)} decided or expired.`);
    said.textContent = parts.length > 0 ? parts.join(" ") + ` ${requests(news.waiting)} pending.` : "";
    if (news.state === inbox().dataset.state) return;
    if (!deciding()) return refresh();
    fresh += news.come;
    show.textContent = fresh > 0 ? `Show ${fresh} new` : "Show changes";
    show.hidden = false;
  };

  // EventSource reconnects after an interruption, but not after a response that is no stream. Then this script reconnects.
  let source;
  const listen = () => {
    source = new EventSource("/approvals/events");
    source.addEventListener("changed", (e) => tell(JSON.parse(e.data)));
    source.addEventListener("error", () => {
      said.textContent = "Live updates are interrupted. Reconnecting; if this persists, reload the page.";
      if (source.readyState === EventSource.CLOSED) setTimeout(listen, 10000);
    });
    source.addEventListener("open", () => { said.textContent = ""; });
  };

  show.addEventListener("click", refresh);
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });
  count(Number(inbox().dataset.count));
  listen();
})();
