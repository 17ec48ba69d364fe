// The page of the chat example. Three rules:
//
//   - Text from the server is inserted as text, never as HTML.
//   - A message has its Idempotency-Key from its first keystroke on. It stays one message, however
//     often a double click, a retry or a reload sends it.
//   - Every state in a stream is whole, so the next one makes up for versions that were missed.

const $ = id => document.getElementById(id);

const EXAMPLES = [
  ["Do three things at once", "charge 5; email bob@example.com hello; search pawl ratchet lease"],
  ["Search the notes", "search pawl ratchet lease"],
  ["Count slowly, and reload meanwhile", "count to 50"],
  ["Fail, and get the credit back", "fail"],
  ["Just talk", "What does a pawl do?"],
];

const REASONS = {
  INSUFFICIENT_CREDITS: "you have no credits left",
  ORG_LIMIT: "the organisation has used up its questions for today",
  TOO_MANY_WAITING: "too many questions are waiting already",
};

// ---- Requests

// api resolves to the JSON of the response. It rejects with an error that has the status, code and
// retryAfter (seconds) of the response, and no status if there was no response.
async function api(method, path, body, headers = {}) {
  const request = { method, headers: { ...headers }, signal: AbortSignal.timeout(30_000) };
  if (body !== undefined) {
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  const response = await fetch(path, request);
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;
  let code = `HTTP ${response.status}`;
  try { code = JSON.parse(text).code || code; } catch { /* a response of a proxy */ }
  const after = response.headers.get("Retry-After");
  throw Object.assign(new Error(code), { code, status: response.status, retryAfter: after === null ? null : Number(after) || 1 });
}

const backoff = tries => Math.min(5000, 250 * 2 ** tries) * (0.75 + Math.random() / 2);

// again calls f until it succeeds or fails with an error that a retry cannot change.
async function again(f, failed = () => {}) {
  for (let tries = 0; ; tries++) {
    try {
      return await f();
    } catch (e) {
      const soon = e.retryAfter != null && e.retryAfter <= 30;
      if (e.status && e.status < 500 && !soon) throw e;
      failed();
      await new Promise(done => setTimeout(done, Math.max(backoff(tries), soon ? e.retryAfter * 1000 : 0)));
    }
  }
}

// follow keeps an EventSource open. An EventSource reconnects by itself without a response, and closes
// on a status other than 200, for example while a server starts. Then follow creates a new one.
function follow(url, onState, onConnected = () => {}) {
  let source, timer, tries = 0;
  const retry = () => {
    source.close();
    timer = setTimeout(open, backoff(tries++));
  };
  function open() {
    source = new EventSource(url);
    source.onopen = () => onConnected(true);
    source.onmessage = e => {
      tries = 0;
      onState(JSON.parse(e.data));
    };
    source.addEventListener("missed", e => missed(JSON.parse(e.data).count));
    source.addEventListener("failed", retry);
    source.onerror = () => {
      onConnected(false);
      if (source.readyState === EventSource.CLOSED) retry();
    };
  }
  open();
  return { url, close() { clearTimeout(timer); source.close(); } };
}

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), b => b.toString(16).padStart(2, "0")).join("");

const stored = (name, fallback) => JSON.parse(sessionStorage.getItem(name)) ?? fallback;
const store = (name, value) => value == null ? sessionStorage.removeItem(name) : sessionStorage.setItem(name, JSON.stringify(value));

// ---- State of the page

let sessions = [];
let view = null;                    // the session on screen: see show
let outbox = stored("outbox", []);  // messages without a response: {key, session, text, after which turn, failed}
const flushing = new Set();         // sessions whose outbox is being sent
let sessionStream = null, turnStream = null;

function show(id) {
  if (view?.id === id) return;
  closeStreams();
  view = {
    id,
    session: sessions.find(s => s.id === id),
    turns: new Map(),               // by number: {n, turn, question, answer}
    live: null,                     // the latest event of the turn in flight
    first: null, next: null,        // the versions of the messages loaded: from first on, before next
    loaded: "",                     // the value of opened when messages were loaded last
  };
  $("log").replaceChildren();
  $("log").ariaBusy = "true"; // a screen reader does not read the first messages
  nodes.clear();
  $("composer-text").disabled = $("title").disabled = false;
  $("composer-text").value = stored("draft:" + id, { text: "" }).text;
  grow();
  drawSessions();
  render();
  openStreams();
}

function openStreams() {
  if (!view || document.hidden) return;
  const v = view;
  sessionStream ??= follow(`/api/sessions/${v.id}/events`, s => v === view && onSession(s), connected);
  followTurn();
  poll();
}

function closeStreams() {
  sessionStream?.close();
  turnStream?.close();
  sessionStream = turnStream = null;
}

// missed counts the versions that came faster than they could be sent. The next state includes them.
let skipped = 0;
function missed(count) {
  skipped += count;
  $("connection").title = `${skipped} versions were skipped: they came faster than they could be sent.`;
}

function connected(yes) {
  $("connection").dataset.state = yes ? "live" : "lost";
  $("connection-text").textContent = yes ? "Live" : "Reconnecting";
}

function onSession(s) {
  if (s.version < view.session.version) return;
  view.session = s;
  sessions = sessions.map(other => other.id === s.id ? s : other);
  if (opened(view) !== view.loaded) loadMessages();
  poll();
  drawSessions();
  followTurn();
  render();
}

// inFlight is the oldest turn that is not over. A turn whose last event has arrived is over, even if the
// session still lists it as open.
const inFlight = () => view?.session.open.find(t => !view.turns.get(t.n)?.answer)?.id;

function followTurn() {
  const turn = inFlight(), url = turn && `/api/turns/${turn}/events`;
  if (turnStream?.url === url || document.hidden) return;
  turnStream?.close();
  const v = view;
  turnStream = url ? follow(url, t => v === view && onTurn(t)) : null;
}

// opened changes whenever there are new messages to load.
const opened = v => [v.session.turns, ...v.session.open.map(t => t.id)].join();

function onTurn(t) {
  view.live = t;
  if (["done", "stopped", "failed"].includes(t.status)) {
    keep({ n: t.n, role: "assistant", turn: t.id, text: t.text, status: t.status, steps: t.steps, error: t.error });
    followTurn();
    poll();
  }
  render();
}

function keep(m) {
  const t = view.turns.get(m.n) ?? { n: m.n, turn: m.turn };
  t[m.role === "user" ? "question" : "answer"] = m;
  view.turns.set(m.n, t);
}

// loadMessages loads the last messages, and later those that are new.
let loading = null;
async function loadMessages() {
  const v = view;
  if (loading === v) return void (v.stale = true);
  loading = v;
  try {
    do {
      v.stale = false;
      v.loaded = opened(v);
      if (v.next === null) await loadPage(v, "");
      else while (v === view && await loadPage(v, `?from=${v.next}`));
      const missing = o => !v.turns.get(o.n)?.question; // an open question that is further back
      while (v === view && v.first > 0 && v.session.open.some(missing)) await loadPage(v, `?before=${v.first}`);
    } while (v.stale && v === view);
    loadMe();
  } catch (e) {
    notice(`The messages could not be loaded: ${e.code}.`);
  } finally {
    if (loading === v) loading = null;
  }
}

// loadPage loads one page, and returns whether there may be more.
async function loadPage(v, query) {
  const got = await again(() => api("GET", `/api/sessions/${v.id}/messages${query}`));
  if (v !== view) return false;
  got.messages.forEach(keep);
  v.first = Math.min(v.first ?? got.first, got.first);
  v.next = Math.max(v.next ?? got.next, got.next);
  followTurn();
  render();
  $("log").ariaBusy = "false";
  return got.more;
}

// ---- Sending

// The draft has its key from the first keystroke on. Emptying the box discards the message and its key.
function drafted() {
  const text = $("composer-text").value;
  const draft = stored("draft:" + view.id, { key: newKey() });
  store("draft:" + view.id, text ? { key: draft.key, text } : null);
  grow();
}

function send(text, key) {
  if (!text.trim()) return;
  outbox.push({ key, session: view.id, text: text.trim(), after: Math.max(-1, ...view.turns.keys()) });
  store("outbox", outbox);
  render();
  $("scroll").scrollTop = $("scroll").scrollHeight;
  flush(view.id);
}

// flush sends the messages of a session in the outbox, one after the other. It repeats each under its
// key until there is a response.
async function flush(session) {
  if (flushing.has(session)) return;
  flushing.add(session);
  for (let item; (item = outbox.find(i => i.session === session)); ) {
    const post = () => api("POST", `/api/sessions/${session}/messages`, { text: item.text }, { "Idempotency-Key": item.key });
    let accepted, refused;
    try {
      accepted = await again(post, () => { item.failed = true; render(); });
    } catch (e) {
      refused = e;
    }
    outbox = outbox.filter(i => i !== item);
    store("outbox", outbox);
    if (accepted && view?.id === session) keep({ n: accepted.n, role: "user", turn: accepted.turn, text: item.text });
    if (refused) putBack(item, refused);
    render();
    loadMe();
  }
  flushing.delete(session);
}

// putBack returns a refused message to the box, with a new key: the old key would repeat the refusal.
function putBack(item, e) {
  const draft = stored("draft:" + item.session, { text: "" });
  const text = [item.text, draft.text].filter(Boolean).join("\n");
  store("draft:" + item.session, { key: newKey(), text });
  if (view?.id === item.session) $("composer-text").value = text;
  grow();
  notice(`Not sent: ${REASONS[e.code] ?? e.code}.`);
}

async function stop(turn = inFlight()) {
  if (!turn) return;
  try {
    await api("DELETE", `/api/turns/${turn}`);
  } catch (e) {
    if (e.status !== 404 && e.status !== 409) notice("The answer could not be stopped. Try again.");
  }
  poll();
}

// ---- Sessions

async function loadSessions() {
  sessions = await again(() => api("GET", "/api/sessions"));
  drawSessions();
}

async function newSession() {
  const key = stored("new-session", newKey());
  store("new-session", key);
  $("session-new").disabled = true;
  try {
    const s = await again(() => api("POST", "/api/sessions", {}, { "Idempotency-Key": key }));
    await loadSessions();
    location.hash = s.id;
    $("composer-text").focus();
  } catch (e) {
    notice(`The session could not be created: ${e.code}.`);
  } finally {
    store("new-session", null);
    $("session-new").disabled = false;
  }
}

// route shows the session in the URL, so that a reload and a second tab show the same session.
async function route() {
  let id = location.hash.slice(1);
  if (id && !sessions.some(s => s.id === id)) await loadSessions();
  if (id && !sessions.some(s => s.id === id)) {
    notice("This session does not exist, or is not yours.");
    id = "";
  }
  if (!id && !sessions.length) return newSession();
  if (!id) return void (location.hash = sessions[0].id);
  show(id);
}

// rename changes the title only if no other client has changed it in the meantime. If the version has
// moved for another reason, such as the end of a turn, it tries again.
let editing = null; // the session when the user began to edit its title
async function rename() {
  const before = editing, title = $("title").value.trim(), v = view;
  editing = null;
  if (!before || !title || title === before.title) return drawSessions();
  for (let base = v.session.title === before.title ? v.session : before; ;) {
    try {
      const renamed = await api("PATCH", `/api/sessions/${v.id}`, { title }, { "If-Match": `"${base.version}"` });
      return v === view && onSession(renamed);
    } catch (e) {
      if (e.status !== 409 && e.status !== 412) return notice(`Not renamed: ${e.code ?? "no answer"}.`), drawSessions();
      await loadSessions();
      base = sessions.find(s => s.id === v.id);
      if (!base || v !== view) return;
      if (base.title === before.title) continue;
      onSession(base);
      notice(`The title was changed to “${base.title}” in the meantime.`, "Use my title", () => {
        editing = base;
        $("title").value = title;
        rename();
      });
      return;
    }
  }
}

async function loadMe() {
  try {
    const me = await api("GET", "/api/me");
    setText($("me-user"), me.user);
    setText($("me-credits"), String(me.credits));
    $("org-meter").max = me.org.per_day;
    $("org-meter").value = me.org.used;
    setText($("org-used"), `${me.org.used} of ${me.org.per_day}`);
    if (document.activeElement !== $("instructions")) $("instructions").value = me.settings?.instructions ?? "";
  } catch { /* the next poll repeats it */ }
}

// ---- Drawing

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter(c => c));
  return node;
}

const span = (text, kind) => el("span", { class: kind }, text);

// setText appends if possible, so that a selection in a growing answer stays.
function setText(node, text) {
  const old = node.textContent;
  if (old === text) return;
  if (old && text.startsWith(old) && node.childNodes.length === 1) node.firstChild.appendData(text.slice(old.length));
  else node.textContent = text;
}

// morph replaces the children of a node, and keeps those that did not change: a button that is replaced
// under the pointer cannot be clicked, and loses the focus.
function morph(node, children) {
  children.forEach((to, i) => {
    const from = node.children[i];
    if (from?.tagName !== to.tagName) return from ? from.replaceWith(to) : node.append(to);
    for (const { name } of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
    for (const { name, value } of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    if (to.children.length) morph(from, [...to.children]);
    else setText(from, to.textContent);
  });
  while (node.children.length > children.length) node.lastElementChild.remove();
}

function notice(text, action, onAction) {
  $("notice").hidden = !text;
  $("notice-text").textContent = text ?? "";
  $("notice-action").hidden = !action;
  $("notice-action").textContent = action ?? "";
  $("notice-action").onclick = () => { notice(); onAction(); };
}

function drawSessions() {
  morph($("session-list"), sessions.map(s => el("li", {},
    el("a", { href: "#" + s.id, "aria-current": s.id === view?.id ? "page" : null },
      span(s.title || "Untitled session", "name"), span(s.open.length ? "answering" : `${s.turns}`, "count")))));
  if (!view) return;
  const title = view.session.title;
  if (!editing) $("title").value = title;
  document.title = `${title || "Untitled session"} · Pawl chat`;
}

const nodes = new Map(); // the nodes of the log, by row

// render updates the log. Rows that stay keep their nodes.
function render() {
  if (!view) return;
  const box = $("scroll"), log = $("log");
  const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  const rows = [];
  for (const t of [...view.turns.values()].sort((a, b) => a.n - b.n)) {
    if (!t.question && view.first > 0) continue; // the question is on an earlier page
    if (t.question) rows.push(["q" + t.n, questionNode, t.question, ""]);
    rows.push(["a" + t.n, answerNode, t.answer ?? pending(t)]);
  }
  for (const i of outbox) {
    // A message that the server has, although its response was lost or is late, is not shown twice.
    const arrived = [...view.turns.values()].some(t => t.n > i.after && t.question?.text === i.text);
    if (i.session === view.id && !arrived) rows.push([i.key, questionNode, i, i.failed ? "Sending… (retrying)" : "Sending…"]);
  }
  rows.forEach(([key, draw, ...what], i) => {
    const node = draw(nodes.get(key), ...what);
    nodes.set(key, node);
    if (log.children[i] !== node) log.insertBefore(node, log.children[i] ?? null);
  });
  while (log.children.length > rows.length) log.lastChild.remove();
  const answering = inFlight();
  if (!answering && document.activeElement === $("stop")) $("composer-text").focus();
  $("stop").hidden = !answering;
  $("earlier").hidden = !view.first;
  $("welcome").hidden = rows.length > 0 || view.session.turns > 0;
  if (atEnd) box.scrollTop = box.scrollHeight;
}

// pending returns the part of an incomplete answer that has arrived.
function pending(t) {
  const place = view.session.open.findIndex(o => o.id === t.turn);
  if (view.live?.id === t.turn) return { ...view.live, place };
  return { n: t.n, turn: t.turn, status: "waiting", text: "", place };
}

function questionNode(node, m, note) {
  node ??= el("article", { class: "question", "data-n": m.n, "aria-label": "You" }, el("p", { class: "text" }), el("p", { class: "note" }));
  setText(node.firstChild, m.text);
  setText(node.lastChild, note);
  node.dataset.status = note ? "sending" : "sent";
  return node;
}

function answerNode(node, a) {
  if (node?.drawn === a) return node;
  node ??= el("article", { class: "answer", "data-n": a.n, "aria-label": "Answer" },
    el("div", { class: "steps" }), el("p", { class: "text" }), el("p", { class: "note" }));
  const [steps, text, note] = node.children;
  node.drawn = a;
  node.dataset.status = a.status;
  node.setAttribute("aria-busy", ["waiting", "answering"].includes(a.status));
  const calls = JSON.stringify([a.steps, a.board]);
  if (node.calls !== calls) {
    node.calls = calls;
    morph(steps, (a.steps ?? []).flatMap((s, i) => [el("p", { class: "said" }, s.text ?? ""),
      el("ul", { class: "step" }, ...s.calls.map(callNode), i === a.steps.length - 1 && boardNode(a.board))]));
  }
  setText(text, a.text ?? "");
  setText(note, {
    waiting: a.place > 0 ? `Waiting: number ${a.place} in the queue` : "Starting…",
    answering: a.text ? "" : "Working…",
    stopped: "Stopped. The text so far stays.",
    failed: `Failed${a.error ? ": " + a.error : ""}. The credit was returned.`,
  }[a.status] ?? "");
  return node;
}

function callNode(c) {
  return el("li", { class: "call", "data-name": c.name, "data-done": String(c.done) },
    el("span", { class: "mark", role: "img", "aria-label": c.done ? "done" : "running" }),
    el("code", {}, c.name), el("span", { class: "args" }, pairs(c.args)),
    c.result ? el("span", { class: "result" }, c.result) : null);
}

// pairs shows the arguments of a call without JSON punctuation.
function pairs(json) {
  const plain = v => Array.isArray(v) ? v.map(plain).join(", ") : typeof v === "string" ? v : JSON.stringify(v);
  try { return Object.entries(JSON.parse(json)).map(([k, v]) => `${k}: ${plain(v)}`).join("; "); } catch { return json; }
}

function boardNode(board) {
  if (!board?.of) return null;
  return el("li", { class: "board" }, el("progress", { max: board.of, value: board.done, "aria-label": "Searches done" }), span(`${board.done} of ${board.of} searches done`));
}

// ---- The panel

// poll loads the panel, and again after a second as long as there is activity.
let pollTimer = 0, polling = false, pollAgain = false, busyUntil = 0;
async function poll() {
  clearTimeout(pollTimer);
  if (!view || document.hidden) return;
  if (polling) return void (pollAgain = true);
  const v = view;
  polling = true;
  pollAgain = false;
  try {
    const [panel] = await Promise.all([$("panel").checkVisibility() && api("GET", `/api/sessions/${v.id}/panel`), loadMe()]);
    if (panel && v === view) drawPanel(panel);
    if (panel?.claims.length || view.session.open.length || outbox.length) busyUntil = Date.now() + 5000;
  } catch { /* the next poll repeats it */ }
  polling = false;
  pollTimer = setTimeout(poll, pollAgain ? 50 : Date.now() < busyUntil ? 1000 : 10_000);
}

const list = (id, rows) => morph($(id), rows.slice(0, 12).map(cells => el("li", {}, ...cells)));
const time = us => us < 1000 ? `${Math.round(us)} µs` : us < 1e6 ? `${(us / 1000).toFixed(us < 1e4 ? 1 : 0)} ms` : `${(us / 1e6).toFixed(1)} s`;

function drawPanel(p) {
  setText($("state-version"), `version ${p.scope.version}`);
  setText($("state-key"), p.scope.key);
  setText($("state"), JSON.stringify(p.scope.state, null, 2) ?? "");
  setText($("queue-summary"), `${p.queue.depth} waiting. Longest recent wait of a write: ${time(p.queue.longest_us)}.`);
  list("queue", p.queue.waiting.map(w => [span(`Question ${w.n + 1}`, "what"), span(`waiting for ${time(w.ms * 1000)}`, "quiet")]));
  const inClaims = $("claims").contains(document.activeElement);
  list("claims", p.claims.map(c => [span(c.what, "what"), span(`running for ${time(c.ms * 1000)}`, "quiet"),
    c.turn && el("button", { type: "button", class: "small", "data-turn": c.turn, "aria-label": "Stop this answer" }, "Stop")]));
  if (inClaims && !$("claims").contains(document.activeElement)) $("composer-text").focus();
  morph($("counters"), ["committed", "conflicts", "retries", "failed"].map(name =>
    el("div", {}, el("dt", {}, name), el("dd", { "data-testid": "counter-" + name }, String(p.counters[name] ?? 0)))));
  list("recent", p.recent.map(r => [span(r.what, "what"), span(r.scope, "grow mono"), span(`${r.path}, ${r.attempts}×`, "quiet")]));
  list("charges", p.charges.map(c => [span(String(c.amount), "what"), span(c.id.split("/").pop(), "grow mono"), span(c.status, "badge")]));
  list("mails", p.mails.map(m => [span(m.to, "what"), span(m.text, "grow quiet"), span(m.status, "badge")]));
}

async function contend() {
  $("contention").disabled = true;
  setText($("contention-text"), "Running…");
  try {
    const r = await api("POST", "/api/contention");
    setText($("contention-text"), `${r.writers} writers, ${r.each} increments each. The thin bar shows the time.`);
    $("contention-chart").replaceChildren(chart(r.ways));
  } catch (e) {
    setText($("contention-text"), e.status === 409 ? "Another run is in progress. Try again in a moment." : "The run failed. Try again.");
  }
  $("contention").disabled = false;
  $("contention").textContent = "Run again";
  poll();
}

// chart draws, for each way, the value present, the value expected, and the time.
function chart(ways) {
  const width = 320, row = 46;
  const figures = w => `${w.present} of ${w.expected}, ${time(w.ms * 1000)}`;
  const shape = (tag, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text ?? "";
    return node;
  };
  const svg = shape("svg", { viewBox: `0 0 ${width} ${ways.length * row}`, role: "img",
    "aria-label": ways.map(w => `${w.name}: ${figures(w)}`).join("; ") });
  const slowest = Math.max(...ways.map(w => w.ms), 0.001);
  ways.forEach((w, i) => {
    const y = i * row, part = Math.min(1, w.present / w.expected), whole = w.present === w.expected;
    svg.append(
      shape("text", { x: 0, y: y + 13, class: "name" }, w.name),
      shape("text", { x: width, y: y + 13, class: whole ? "figure" : "figure bad" }, figures(w)),
      shape("rect", { x: 0, y: y + 20, width, height: 9, rx: 4.5, class: "expected" }),
      shape("rect", { x: 0, y: y + 20, width: Math.max(4, part * width), height: 9, rx: 4.5, class: whole ? "present" : "present bad" }),
      shape("rect", { x: 0, y: y + 32, width: Math.max(2, w.ms / slowest * width), height: 2, rx: 1, class: "time" }));
  });
  return svg;
}

// ---- Input

function grow() { // for browsers without field-sizing
  const box = $("composer-text");
  box.style.height = "auto";
  box.style.height = Math.min(box.scrollHeight + 2, 180) + "px";
}

function drawer(open) {
  document.body.classList.toggle("panel-open", open);
  $("panel-toggle").setAttribute("aria-expanded", open);
  if (open) poll();
}

$("skip").addEventListener("click", () => $("composer-text").focus());
$("composer").addEventListener("submit", e => {
  e.preventDefault();
  const draft = stored("draft:" + view.id, null); // null: the box is empty, as at a second click
  store("draft:" + view.id, null);
  $("composer-text").value = "";
  grow();
  if (draft) send(draft.text, draft.key);
  $("composer-text").focus();
});
$("composer-text").addEventListener("input", drafted);
$("composer-text").addEventListener("keydown", e => {
  if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
  e.preventDefault();
  $("composer").requestSubmit();
});
$("stop").addEventListener("click", () => stop());
$("claims").addEventListener("click", e => e.target.dataset.turn && stop(e.target.dataset.turn));
$("session-new").addEventListener("click", newSession);
$("earlier").addEventListener("click", () => loadPage(view, `?before=${view.first}`).catch(e => notice(e.code)));
$("contention").addEventListener("click", contend);
$("instructions").addEventListener("change", () => again(() => api("PUT", "/api/settings/instructions", { value: $("instructions").value })).catch(e => notice(`The instructions were not saved: ${e.code}.`)));
$("panel-toggle").addEventListener("click", () => drawer($("panel-toggle").getAttribute("aria-expanded") !== "true"));
$("notice-close").addEventListener("click", () => { notice(); $("composer-text").focus(); });
$("title").addEventListener("focus", () => { editing ??= view.session; });
$("title").addEventListener("blur", rename);
$("rename").addEventListener("submit", e => { e.preventDefault(); $("composer-text").focus(); });
document.addEventListener("keydown", e => {
  if (e.key !== "Escape" || e.isComposing) return;
  if (document.activeElement === $("title")) {
    $("title").value = editing.title;
    $("composer-text").focus();
  } else if (document.body.classList.contains("panel-open")) {
    drawer(false);
    $("panel-toggle").focus();
  } else {
    stop();
  }
});
// A browser allows six connections to a host, over all tabs. A hidden tab keeps none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) return closeStreams();
  loadSessions().catch(() => {});
  openStreams();
});
window.addEventListener("hashchange", route);
$("examples").append(...EXAMPLES.map(([label, text]) => el("button", { type: "button", class: "example", onclick: () => send(text, newKey()) },
  el("strong", {}, label), span(text, "quiet"))));

try {
  await loadSessions();
  await route();
} catch (e) {
  notice(`The page could not be loaded: ${e.code ?? e.message}.`);
}
new Set(outbox.map(i => i.session)).forEach(flush);
