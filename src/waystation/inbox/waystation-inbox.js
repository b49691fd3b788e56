// <waystation-inbox server="https://…" tenant="acme" inbox="main" user="u1" token="wsu_…"></waystation-inbox>
//
// A bell with a badge, and a panel with the user's messages. Bodies are text, or a few marks of
// Markdown; nothing in them is ever taken for HTML.

const TEXTS = {
  title: "Notifications",
  open: "Notifications, {unread} unread",
  readAll: "Mark all as read",
  archive: "Archive",
  unread: "Unread",
  more: "Show more",
  empty: "Nothing new",
  trouble: "Not connected. Trying again.",
};

const STYLE = `
:host { position: relative; display: inline-block; font: 14px/1.45 var(--waystation-font, system-ui, sans-serif);
  --accent: var(--waystation-accent, #2457d6); --back: var(--waystation-background, #fff);
  --text: var(--waystation-text, #1c2024); --quiet: var(--waystation-quiet, #5b6470);
  --line: var(--waystation-line, #d9dde3); --fresh: var(--waystation-unread, #eef3ff);
  --badge: var(--waystation-badge, #c6212f); }
@media (prefers-color-scheme: dark) {
  :host(:not([theme=light])) { --accent: var(--waystation-accent, #8fb0ff); --back: var(--waystation-background, #16191d);
    --text: var(--waystation-text, #eceef1); --quiet: var(--waystation-quiet, #a3acb8);
    --line: var(--waystation-line, #343a42); --fresh: var(--waystation-unread, #1e2637); }
}
:host([theme=dark]) { --accent: var(--waystation-accent, #8fb0ff); --back: var(--waystation-background, #16191d);
  --text: var(--waystation-text, #eceef1); --quiet: var(--waystation-quiet, #a3acb8);
  --line: var(--waystation-line, #343a42); --fresh: var(--waystation-unread, #1e2637); }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
button:focus-visible, a:focus-visible, li:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
.bell { position: relative; padding: 8px; border-radius: 8px; color: var(--waystation-bell, inherit); }
.bell svg { display: block; width: 22px; height: 22px; }
.badge { position: absolute; inset-block-start: 0; inset-inline-end: 0; min-width: 18px; padding-inline: 4px;
  box-sizing: border-box; border-radius: 9px; background: var(--badge); color: #fff; font-size: 11px;
  line-height: 18px; text-align: center; }
.badge[hidden] { display: none; }
.panel { position: absolute; inset-block-start: 100%; inset-inline-end: 0; z-index: 1000; width: min(380px, 92vw);
  max-height: min(540px, 80vh); overflow: auto; margin-block-start: 6px; background: var(--back); color: var(--text);
  border: 1px solid var(--line); border-radius: 12px; box-shadow: 0 8px 28px rgb(0 0 0 / 18%); text-align: start; }
.panel[hidden] { display: none; }
header { display: flex; justify-content: space-between; align-items: center; gap: 12px; padding: 12px 14px;
  border-block-end: 1px solid var(--line); position: sticky; inset-block-start: 0; background: var(--back); }
h2 { margin: 0; font-size: 15px; }
header button, .more { color: var(--accent); }
ul { list-style: none; margin: 0; padding: 0; }
li { display: grid; grid-template-columns: 1fr auto; gap: 2px 10px; padding: 12px 14px;
  border-block-end: 1px solid var(--line); border-inline-start: 3px solid transparent; cursor: default; }
li[data-unread] { background: var(--fresh); border-inline-start-color: var(--accent); }
h3 { margin: 0; font-size: 14px; font-weight: 600; overflow-wrap: anywhere; }
h3 a { color: inherit; }
.body { grid-column: 1; margin: 0; color: var(--text); overflow-wrap: anywhere; white-space: pre-line; }
.body code { font-family: ui-monospace, monospace; background: var(--line); border-radius: 4px; padding-inline: 3px; }
.body a { color: var(--accent); }
.meta { grid-column: 1; color: var(--quiet); font-size: 12px; }
.archive { grid-column: 2; grid-row: 1; color: var(--quiet); padding-inline: 4px; }
.archive svg { display: block; width: 18px; height: 18px; }
.note { padding: 14px; margin: 0; color: var(--quiet); }
.more { display: block; width: 100%; padding: 12px; }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
`;

const BELL = "M12 3a6 6 0 0 0-6 6v4l-2 3h16l-2-3V9a6 6 0 0 0-6-6Zm-2 16a2 2 0 0 0 4 0";
const BOX = "M4 5h16v4H4zM6 9v10h12V9M10 13h4";

class WaystationInbox extends HTMLElement {
  static observedAttributes = ["server", "tenant", "inbox", "user", "token", "texts", "theme"];

  #messages = new Map();
  #counts = { total: 0, unread: 0, unseen: 0 };
  #cursor = null;
  #lastId = null;
  #stopped = null;
  #parts = {};

  connectedCallback() {
    if (!this.shadowRoot) this.#build();
    this.#restart();
  }

  disconnectedCallback() {
    this.#stopped?.abort();
    this.#stopped = null;
    document.removeEventListener("click", this.#outside);
  }

  attributeChangedCallback(name, before, now) {
    if (!this.shadowRoot || before === now) return;
    if (name === "texts") this.#label();
    else if (name !== "theme") this.#restart();
  }

  get counts() {
    return this.#counts;
  }

  // What is shown

  #build() {
    const root = this.attachShadow({ mode: "open" });
    const style = document.createElement("style");
    style.textContent = STYLE;
    const bell = element("button", { class: "bell", type: "button", "aria-haspopup": "dialog", "aria-expanded": "false" });
    const badge = element("span", { class: "badge", "aria-hidden": "true", hidden: "" });
    bell.append(icon(BELL), badge);
    const panel = element("div", { class: "panel", role: "dialog", id: "panel", hidden: "" });
    bell.setAttribute("aria-controls", "panel");
    const heading = element("h2", { id: "heading", tabindex: "-1" });
    panel.setAttribute("aria-labelledby", "heading");
    const readAll = element("button", { type: "button" });
    const head = element("header");
    head.append(heading, readAll);
    const list = element("ul", { "aria-labelledby": "heading" });
    const note = element("p", { class: "note", hidden: "" });
    const more = element("button", { class: "more", type: "button", hidden: "" });
    const trouble = element("p", { class: "note", role: "alert", hidden: "" });
    panel.append(head, trouble, list, note, more);
    const live = element("div", { class: "sr", role: "status", "aria-live": "polite" });
    root.append(style, bell, panel, live);
    this.#parts = { bell, badge, panel, heading, readAll, list, note, more, live, trouble };
    bell.addEventListener("click", () => this.#toggle());
    readAll.addEventListener("click", () => this.#call("POST", "read-all").then((c) => this.#count(c)).then(() => this.#load()));
    more.addEventListener("click", () => this.#load(this.#cursor));
    panel.addEventListener("keydown", (event) => this.#key(event));
    this.#label();
  }

  #label() {
    const { heading, readAll, more } = this.#parts;
    heading.textContent = this.#text("title");
    readAll.textContent = this.#text("readAll");
    more.textContent = this.#text("more");
    this.#count(this.#counts);
    this.#draw();
  }

  #text(name) {
    let own = {};
    try {
      own = JSON.parse(this.getAttribute("texts") || "{}");
    } catch {
      // then ours are used
    }
    return String(own[name] ?? TEXTS[name]);
  }

  #count(counts) {
    if (!counts) return;
    const before = this.#counts.unread;
    this.#counts = counts;
    const { bell, badge, readAll, live } = this.#parts;
    badge.hidden = !counts.unread;
    badge.textContent = String(counts.unread);
    readAll.hidden = !counts.unread;
    const label = this.#text("open").replace("{unread}", counts.unread);
    bell.setAttribute("aria-label", label);
    if (counts.unread > before) live.textContent = label;
    this.dispatchEvent(new CustomEvent("counts", { detail: counts }));
  }

  #draw() {
    const { list, note, more, panel } = this.#parts;
    if (panel.hidden) return;
    const active = this.shadowRoot.activeElement;
    const place = [...list.children].indexOf(active?.closest?.("li"));
    const focused = active?.closest?.("li")?.dataset.id;
    const inside = active?.classList.contains("archive");
    const shown = [...this.#messages.values()].filter((message) => !message.archived);
    shown.sort((a, b) => (a.id < b.id ? 1 : -1));
    list.replaceChildren(...shown.map((message) => this.#item(message)));
    note.textContent = this.#text("empty");
    note.hidden = shown.length > 0;
    more.hidden = !this.#cursor;
    if (!focused) return;
    const same = list.querySelector(`li[data-id="${CSS.escape(focused)}"]`);
    const near = list.children[Math.min(place, list.children.length - 1)] ?? this.#parts.heading;
    (same ? (inside ? same.querySelector(".archive") : same) : near).focus();
  }

  #item(message) {
    const item = element("li", { tabindex: "0", "data-id": message.id });
    const title = element("h3");
    if (!message.read) {
      item.dataset.unread = "";
      const mark = element("span", { class: "sr" });
      mark.textContent = this.#text("unread") + ": ";
      title.append(mark);
    }
    const link = safeLink(message.message?.cta_uri);
    const words = String(message.message?.title ?? "");
    if (link) {
      const anchor = element("a", { href: link });
      anchor.textContent = words;
      title.append(anchor);
    } else {
      title.append(words);
    }
    item.append(title);
    if (typeof message.message?.body === "string" && message.message.body) {
      const body = element("p", { class: "body" });
      body.append(...marked(message.message.body));
      item.append(body);
    }
    const meta = element("span", { class: "meta" });
    const time = element("time", { datetime: message.created_at ?? "" });
    time.textContent = when(message.created_at, this);
    meta.append(String(message.sender ?? ""), " · ", time);
    const archive = element("button", { class: "archive", type: "button", "aria-label": this.#text("archive") });
    archive.append(icon(BOX));
    archive.addEventListener("click", (event) => {
      event.stopPropagation();
      this.#mark(message, "archive");
    });
    item.append(meta, archive);
    item.addEventListener("click", () => this.#open(message));
    return item;
  }

  #open(message) {
    this.dispatchEvent(new CustomEvent("message", { detail: message }));
    if (!message.read) this.#mark(message, "read");
  }

  #toggle(show = this.#parts.panel.hidden) {
    const { bell, panel, list } = this.#parts;
    panel.hidden = !show;
    bell.setAttribute("aria-expanded", String(show));
    if (show) {
      this.#keepInView();
      document.addEventListener("click", this.#outside);
      this.#load().then(() => (list.firstElementChild ?? this.#parts.panel.querySelector("button"))?.focus());
      this.#call("POST", "seen").then((counts) => this.#count(counts));
    } else {
      document.removeEventListener("click", this.#outside);
      bell.focus();
    }
  }

  #keepInView() {
    const { panel } = this.#parts;
    panel.style.translate = "none";
    const { left, right } = panel.getBoundingClientRect();
    const edge = document.documentElement.clientWidth - 8;
    const shift = left < 8 ? 8 - left : Math.min(0, edge - right);
    if (shift) panel.style.translate = `${shift}px`;
  }

  #outside = (event) => {
    if (!event.composedPath().includes(this)) {
      this.#parts.panel.hidden = true;
      this.#parts.bell.setAttribute("aria-expanded", "false");
      document.removeEventListener("click", this.#outside);
    }
  };

  #key(event) {
    const item = event.target.closest("li");
    if (event.key === "Escape") this.#toggle(false);
    else if (item && event.key === "ArrowDown") item.nextElementSibling?.focus();
    else if (item && event.key === "ArrowUp") item.previousElementSibling?.focus();
    else if (event.target === item && (event.key === "Enter" || event.key === " ")) {
      const message = this.#messages.get(item.dataset.id);
      item.querySelector("h3 a")?.click();
      if (message) this.#open(message);
    } else if (event.target === item && event.key === "Delete") {
      this.#mark(this.#messages.get(item.dataset.id), "archive");
    } else return;
    event.preventDefault();
  }

  // What the server says and is told

  #restart() {
    this.#stopped?.abort();
    this.#stopped = null;
    this.#messages.clear();
    this.#lastId = this.#cursor = null;
    this.#count({ total: 0, unread: 0, unseen: 0, categories: {} });
    this.#draw();
    const needed = ["tenant", "inbox", "user", "token"];
    if (!this.isConnected || needed.some((name) => !this.getAttribute(name))) return;
    this.#stopped = new AbortController();
    if (!this.#parts.panel.hidden) this.#load();
    this.#listen(this.#stopped.signal);
  }

  #url(path) {
    const part = (name) => encodeURIComponent(this.getAttribute(name));
    const base = (this.getAttribute("server") ?? "").replace(/\/+$/, "");
    return `${base}/v1/tenants/${part("tenant")}/inboxes/${part("inbox")}/users/${part("user")}/${path}`;
  }

  #headers(more = {}) {
    return { Authorization: `Bearer ${this.getAttribute("token")}`, ...more };
  }

  async #call(method, path) {
    const signal = this.#stopped?.signal;
    try {
      const answer = await fetch(this.#url(path), { method, headers: this.#headers(), signal, credentials: "omit" });
      if (answer.status === 401) this.dispatchEvent(new CustomEvent("expired"));
      return answer.ok && answer.status !== 204 ? await answer.json() : null;
    } catch {
      return null; // the stream says when the server is back
    }
  }

  async #load(cursor = null) {
    const page = await this.#call("GET", `messages?limit=20${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
    if (!page) return;
    if (!cursor) this.#messages.clear();
    for (const message of page.data) {
      this.#messages.set(message.id, message);
      if (!this.#lastId || message.id > this.#lastId) this.#lastId = message.id;
    }
    this.#cursor = page.cursor;
    this.#draw();
  }

  async #mark(message, mark) {
    if (!message) return;
    Object.assign(message, mark === "archive" ? { archived: true } : { read: mark === "read" });
    this.#draw();
    const counts = await this.#call("POST", `messages/${encodeURIComponent(message.id)}/${mark}`);
    if (counts) this.#count(counts);
    else this.#load();
  }

  async #listen(signal) {
    for (let failures = 0; !signal.aborted; failures++) {
      try {
        const more = this.#lastId ? { "Last-Event-ID": this.#lastId } : {};
        const answer = await fetch(this.#url("stream"), { headers: this.#headers(more), signal, credentials: "omit" });
        if (answer.status === 401 || answer.status === 404) {
          this.dispatchEvent(new CustomEvent("expired"));
          return;
        }
        if (answer.ok) {
          this.#trouble(false);
          if (!this.#parts.panel.hidden) this.#load(); // what was changed meanwhile
          await this.#follow(answer.body, () => (failures = 0));
        }
      } catch (error) {
        if (signal.aborted) return;
      }
      if (failures > 0) this.#trouble(true);
      await new Promise((resume) => setTimeout(resume, Math.min(30_000, 500 * 2 ** failures) * (0.5 + Math.random())));
    }
  }

  #trouble(now) {
    const { trouble } = this.#parts;
    trouble.textContent = now ? this.#text("trouble") : "";
    trouble.hidden = !now;
  }

  async #follow(body, heard) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        this.#hear(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  #hear(block) {
    const fields = {};
    for (const line of block.split("\n")) {
      const at = line.indexOf(": ");
      if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
    }
    if (!fields.event) return;
    const data = JSON.parse(fields.data);
    if (fields.id) this.#lastId = fields.id;
    if (fields.event === "counts") return this.#count(data);
    if (fields.event === "refresh") return void this.#load();
    if (fields.event === "removed") this.#messages.delete(data.id);
    else {
      const known = this.#messages.get(data.id);
      if (fields.event === "message") this.#messages.set(data.id, { ...data, ...(known && { read: known.read || data.read }) });
      else if (known) Object.assign(known, data);
    }
    this.#draw();
  }
}

function element(name, attributes = {}) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function icon(path) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.6", "stroke-linejoin": "round", "aria-hidden": "true" })) svg.setAttribute(key, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

// Only addresses of the web, and paths of the page's own site.
function safeLink(given) {
  if (typeof given !== "string" || /[\s"<>\\]/.test(given)) return null;
  if (/^https?:\/\/[^/]/i.test(given)) return given;
  return /^\/(?!\/)/.test(given) ? given : null;
}

// **bold**, *italic*, `code` and [words](link), as nodes; everything else is text.
function marked(text) {
  const nodes = [];
  const pattern = /\*\*([^*\n]{1,500})\*\*|\*([^*\n]{1,500})\*|`([^`\n]{1,500})`|\[([^\]\n]{1,500})\]\(([^)\s]{1,2000})\)/g;
  let at = 0;
  for (const match of text.matchAll(pattern)) {
    const [whole, bold, italic, code, words, link] = match;
    nodes.push(text.slice(at, match.index));
    at = match.index + whole.length;
    const href = words === undefined ? null : safeLink(link);
    if (words !== undefined && !href) {
      nodes.push(whole);
      continue;
    }
    const made = element(bold !== undefined ? "strong" : italic !== undefined ? "em" : code !== undefined ? "code" : "a");
    if (href) made.setAttribute("href", href);
    made.textContent = bold ?? italic ?? code ?? words;
    nodes.push(made);
  }
  nodes.push(text.slice(at));
  return nodes;
}

function when(iso, host) {
  const at = Date.parse(iso);
  if (Number.isNaN(at)) return "";
  const language = host.closest("[lang]")?.lang || document.documentElement.lang || undefined;
  const seconds = Math.round((at - Date.now()) / 1000);
  const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto" });
  for (const [unit, size] of [["day", 86_400], ["hour", 3_600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return relative.format(Math.round(seconds / size), unit);
  }
  return relative.format(0, "minute");
}

if (!customElements.get("waystation-inbox")) customElements.define("waystation-inbox", WaystationInbox);
