// The live view of a document. Every text comes from the server escaped, and is set as text.
"use strict";
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
      const head = element("th", f.name);
      head.scope = "row";
      row.append(head, element("td", f.value));
      body.append(row);
    }
    byId("facts").replaceChildren(body);
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

  const source = new EventSource(live.dataset.live);
  source.onopen = () => { live.textContent = "live"; };
  source.onerror = () => { live.textContent = source.readyState === EventSource.CLOSED ? "not live: reload the page" : "reconnecting …"; };
  source.addEventListener("failed", () => { live.textContent = "the store does not answer; reconnecting …"; });
  source.onmessage = (event) => {
    const d = JSON.parse(event.data);
    byId("state").textContent = d.state;
    byId("doc").textContent = d.doc;
    byId("cut").hidden = !d.cut;
    byId("notice").textContent = d.notice;
    byId("notice").hidden = !d.notice;
    showFacts(d.facts);
    if (d.changes) showChanges(d.version, d.changes);
  };
}
