// Elements from data. Text becomes text nodes, never markup, whatever a pair contains.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "path", "rect", "line", "circle", "text", "title"]);

/** Creates an element: functions become event listeners; `value` and the like are set as properties. */
export function h(name, attributes, ...children) {
  const drawn = DRAWN.has(name) && name !== "title";
  const element = drawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "value" || key === "checked" || key === "open" || key === "disabled") element[key] = value;
    else if (key === "style") for (const [rule, set] of Object.entries(value)) element.style.setProperty(rule, set);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

const FOCUSABLE = "button:not(:disabled), select, input, [tabindex]";

/** Replaces the children of an element. Focus and caret move to the new element with the same `id`, or in the same place, or to the pane. */
export function fill(element, ...children) {
  const before = element.contains(document.activeElement) ? document.activeElement : null;
  const caret = before && "selectionStart" in before ? [before.selectionStart, before.selectionEnd] : [null];
  const place = before ? [...element.querySelectorAll(FOCUSABLE)].indexOf(before) : -1;
  element.replaceChildren();
  add(element, children);
  if (!before || before === element) return;
  const same = before.id ? document.getElementById(before.id) : null;
  const others = [...element.querySelectorAll(FOCUSABLE)];
  const now = same && !same.disabled ? same : others[Math.min(place, others.length - 1)] ?? element.closest("[tabindex]");
  now?.focus({ preventScroll: true });
  if (caret[0] !== null && now === same) now.setSelectionRange?.(...caret); // null: a box for numbers has none
}

/** As `fill`, unless the new children look like the old ones: a redraw between the press of a button and its release would lose the click. */
export function refill(element, ...children) {
  const fresh = h("div", null, ...children).childNodes;
  const old = element.childNodes;
  if (fresh.length !== old.length || [...fresh].some((node, place) => !node.isEqualNode(old[place]))) fill(element, [...fresh]);
}

// Controls, bidirectional overrides and zero-width characters can make a text look like another one.
const seen = (text) => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\u200b\u2060\ufeff]/g, "\u2423");

/** Text from the pool: isolated in its own direction, with invisible characters made visible. */
export const foreign = (text, attributes) => h("bdi", { dir: "auto", ...attributes }, seen(text));

/** A recipe's name behind a spot of its colour, which it has in the report too. */
export const who = ({ name, colour }) => h("span", { class: `who ${colour ?? ""}` }, h("i", { class: "swatch" }), " ", foreign(name));

/** A caption as the name of its image, for screen readers. */
export function brief(caption) {
  const text = seen(caption ?? "").trim() || "no caption";
  return text.length > 160 ? `${text.slice(0, 160)} …` : text;
}

export const count = (value) => Math.round(value).toLocaleString("en");

export function percent(part, whole) {
  if (!whole) return "0 %";
  const share = (100 * part) / whole;
  if (part < whole && share >= 99.95) return ">99.9 %";
  if (part > 0 && share < 0.05) return "<0.1 %";
  return `${share > 0 && share < 1 ? share.toFixed(1) : share > 99 && share < 100 ? share.toFixed(1) : Math.round(share)} %`;
}

/** Formats a number with at most four significant digits. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value); // of a recipe: ".inf", or what the server refuses
  if (!value) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
  if (size < 0.001) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
}

/** Shows a message, also to screen readers. */
export function say(text, wrong = false) {
  const place = document.getElementById("said");
  place.textContent = text;
  place.classList.toggle("wrong", wrong);
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), wrong ? 8000 : 3000);
}

/** A command with a button that copies it. */
export const command = (text) => h("span", { class: "command" }, h("code", null, text.split(" ").map((word) => [foreign(word), " "])), h("button", { type: "button", "aria-label": "Copy the command", click: () => copy(text, "Command") }, "Copy"));

/** What a view needs, and the command that adds it. */
export const need = (text, line) => h("div", { class: "need" }, h("p", null, text, " Run this, then start ", h("code", null, "tamis explore"), " again:"), command(line));

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {
    say(`${what} could not be copied: the browser does not allow it`, true);
  }
}
