// Making and filling elements, and showing numbers. Text goes into the page as text only: nothing here, or in any other
// file of the console, turns a string into markup.

export const $ = id => document.getElementById(id);

// el("p", {class: "hint", onclick: f}, "text", other) -> an element
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter(child => child != null));
  return node;
}

export function svg(tag, attributes = {}, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Shows a message in a box that is hidden while it has none.
export function say(box, text) {
  box.textContent = text ?? "";
  box.hidden = !text;
}

// Sets text only where it differs, so that a screen reader is not told the same again.
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// ---- text that grows ------------------------------------------------------------------------------------------------

// Text that arrives in pieces, shown once per frame; its scroller follows while it is at its end.
export class Growing {
  constructor(node, scroller) {
    this.text = node.appendChild(document.createTextNode(""));
    this.scroller = scroller;
    this.pending = "";
    this.frame = 0;
  }

  add(piece) {
    this.pending += piece;
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.pending) return;
    const s = this.scroller, atEnd = s.scrollHeight - s.scrollTop - s.clientHeight < 40;
    this.text.appendData(this.pending);
    this.pending = "";
    if (atEnd) s.scrollTop = s.scrollHeight;
  }

  get value() {
    return this.text.data + this.pending;
  }
}

// ---- numbers --------------------------------------------------------------------------------------------------------

const SPACE = "\u202f"; // narrow, no break: between a number and its unit

// Three digits are enough to read: 0.0123, 4.56, 78.9, 1234, 12.3 k
export function number(v) {
  if (v == null || !Number.isFinite(v)) return "–";
  const size = Math.abs(v);
  if (size >= 1e9) return round(v / 1e9) + SPACE + "G";
  if (size >= 1e6) return round(v / 1e6) + SPACE + "M";
  if (size >= 1e4) return round(v / 1e3) + SPACE + "k";
  return round(v);
}

function round(v) {
  const size = Math.abs(v);
  if (size >= 100 || Number.isInteger(v)) return v.toFixed(0);
  if (size >= 1) return String(Number(v.toFixed(size >= 10 ? 1 : 2)));
  return size < 1e-4 && v !== 0 ? v.toExponential(1) : String(Number(v.toPrecision(3)));
}

export function seconds(v) {
  if (v == null || !Number.isFinite(v)) return "–";
  if (v === 0) return "0";
  if (v < 1e-3) return round(v * 1e6) + SPACE + "µs";
  if (v < 1) return round(v * 1e3) + SPACE + "ms";
  if (v < 100) return (v < 10 ? round(v) : Math.round(v)) + SPACE + "s";
  const minutes = Math.round(v / 60);
  return minutes < 100 ? minutes + SPACE + "min" : `${Math.floor(minutes / 60)}${SPACE}h ${minutes % 60}${SPACE}min`;
}

export function bytes(v) {
  if (v == null || !Number.isFinite(v)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; i++) v /= 1024;
  return (i ? round(v) : String(v)) + SPACE + units[i];
}

export const percent = v => (v == null || !Number.isFinite(v) ? "–" : Number((v * 100).toFixed(v < 0.1 ? 1 : 0)) + SPACE + "%");

// ---- a question -----------------------------------------------------------------------------------------------------

let settle = null; // answers the question that is open

// Asks before something is lost. -> null when the answer is no, else {checked}
export function ask({ title, text, yes, no, option }) {
  const dialog = $("ask-dialog");
  settle?.(); // the last one is closed, and its event is still to come
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-yes").textContent = yes;
  $("ask-no").textContent = no;
  $("ask-option").hidden = !option;
  $("ask-label").textContent = option ?? "";
  $("ask-check").checked = false;
  dialog.returnValue = "";
  dialog.showModal();
  $("ask-no").focus();
  dialog.onclose = () => dialog.open || settle?.();
  return new Promise(resolve => {
    settle = () => {
      settle = null;
      resolve(dialog.returnValue === "ok" ? { checked: $("ask-check").checked } : null);
    };
  });
}
