// Countdowns, and the live view of a document. Every text comes from the server escaped, and is set as
// text.
"use strict";

// duration returns milliseconds as the server writes them: the largest two units.
const duration = (ms) => {
  const s = Math.floor(ms / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (d) return `${d}d${h % 24}h`;
  if (h) return `${h}h${m % 60}m`;
  if (m) return `${m}m${s % 60}s`;
  return `${s}s`;
};

// Each element with data-left counts down from there. The end is by the clock of this page: the
// clock of the server may be another.
const ends = new WeakMap();
const count = () => {
  const now = performance.now();
  let over = false;
  for (const e of document.querySelectorAll("[data-left]")) {
    if (!ends.has(e)) ends.set(e, now + Number(e.dataset.left));
    const left = ends.get(e) - now;
    e.textContent = left > 0 ? duration(left) : "0s";
    over = over || left <= 0;
  }
  return over;
};
count();

const live = document.getElementById("live");
if (live && live.dataset.live && window.EventSource) {
  const byId = (id) => document.getElementById(id);
  const keep = 50; // versions in the list of changes

  const element = (name, text) => {
    const e = document.createElement(name);
    e.textContent = text;
    return e;
  };

  const showFacts = (facts) => {
    const body = document.createElement("tbody");
    for (const f of facts || []) {
      const row = document.createElement("tr");
      const head = element("th", f.name), cell = element("td", f.value);
      head.scope = "row";
      if (f.left) {
        const left = document.createElement("span");
        left.dataset.left = f.left / 1e6; // from nanoseconds
        cell.append(left);
      }
      row.append(head, cell);
      body.append(row);
    }
    byId("facts").replaceChildren(body);
    count();
  };

  const showChanges = (version, changes) => {
    const item = element("li", "version " + version);
    for (const c of changes) {
      item.append(element("div", c.path || "(document)"));
      if (c.before) item.append(element("del", c.before));
      if (c.after) item.append(element("ins", c.after));
    }
    byId("changes-title").hidden = false;
    byId("changes").prepend(item);
    while (byId("changes").children.length > keep) byId("changes").lastChild.remove();
  };

  const show = (event) => {
    const d = JSON.parse(event.data);
    byId("state").textContent = d.state;
    byId("doc").textContent = d.doc;
    byId("cut").hidden = !d.cut;
    byId("notice").textContent = d.notice;
    byId("notice").hidden = !d.notice;
    showFacts(d.facts);
    if (d.changes) showChanges(d.version, d.changes);
  };

  let source;
  const connect = (address) => {
    if (source) source.close();
    source = new EventSource(address);
    source.onopen = () => { live.textContent = "following changes"; };
    source.onerror = () => { live.textContent = source.readyState === EventSource.CLOSED ? "not live: reload the page" : "reconnecting …"; };
    source.addEventListener("failed", () => { live.textContent = "the store does not answer; reconnecting …"; });
    source.onmessage = show;
  };
  connect(live.dataset.live);

  // Neither the renewal nor the end of a lease is a new version: the record is read again when the
  // countdown is over.
  setInterval(() => { if (count() && source.readyState === EventSource.OPEN) connect(live.dataset.again); }, 1000);
} else {
  setInterval(count, 1000);
}
