// The state of the page, stored in its URL: back, forward and copied links work.

import { say } from "./dom.js";

export const EMPTY = Object.freeze({
  recipe: { name: "mine", select: [] },
  off: [], // numbers of steps that are switched off
  view: "grid",
  show: "all",
  reason: 0,
  ranges: [],
  words: [],
  tags: [], // that pairs have (true) or lack (false); "": any tag
  captions: [], // texts that a caption contains; "a | b": one of them
  caption: "", // one more, which is being typed
  sort: "random",
  column: "",
  descending: true,
  size: "small", // of the grid's images
  region: [],
  compared: [],
  charts: null,
  heat: null,
  map: null, // which map, coloured by what
  lasso: null,
  near: null,
  finding: null,
  pair: null,
});

const text = (value) => typeof value === "string";
const whole = (value) => Number.isSafeInteger(value) && value >= 0;
const number = (value) => typeof value === "number";
const record = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const list = (fits) => (value) => Array.isArray(value) && value.every(fits);
const oneOf = (...words) => (value) => words.includes(value);
const orNull = (fits) => (value) => value === null || fits(value);
const tuple = (...each) => (value) => Array.isArray(value) && value.length === each.length && each.every((fits, place) => fits(value[place]));
const step = (value) => text(value) || (record(value) && Object.keys(value).length === 1 && (typeof Object.values(value)[0] === "object" || text(value.tagged)));

/** Checks of each part of the URL, which may be mistyped or forged. */
const FITS = {
  recipe: (value) => record(value) && list(step)(value.select) && ["undefined", "string"].includes(typeof value.name) && (value.saved === undefined || whole(value.saved)),
  off: list(whole),
  view: oneOf("grid", "findings", "disagree", "map", "copies", "rejects"),
  show: oneOf("all", "kept", "dropped"),
  reason: whole,
  ranges: list(tuple(text, orNull(number), orNull(number))),
  words: list(tuple(text, text)),
  tags: list(tuple(text, oneOf(true, false))),
  captions: list(text),
  caption: text,
  sort: oneOf("random", "row", "cut", "score", "extremes"),
  column: text,
  descending: oneOf(true, false),
  size: oneOf("small", "medium", "large"),
  region: list(oneOf(0, 1)),
  compared: list(text),
  charts: orNull(list(text)),
  heat: orNull(tuple(text, text)),
  map: orNull(tuple(text, text)),
  lasso: orNull((value) => record(value) && text(value.map) && list(tuple(number, number))(value.points)),
  near: orNull((value) => record(value) && (text(value.text) || text(value.image) || whole(value.row)) && ["undefined", "string"].includes(typeof value.name)),
  finding: orNull(text),
  pair: orNull(whole),
};

let state = { ...EMPTY };
const listeners = [];
const undone = [];

export const now = () => state;

export function listen(listener) {
  listeners.push(listener);
}

let drag = null; // the recipe that stood before something was dragged; its place in the history is made once
let last = { by: "", at: 0 };
let owed = null; // a write of the address that the browser refused

/** Writes the URL, later if the browser refuses: Firefox and Safari limit it to 100 to 200 times in some seconds. */
function write(how) {
  if (owed) {
    clearTimeout(owed.timer);
    if (owed.how === "pushState") how = "pushState";
    owed = null;
  }
  try {
    history[how](null, "", address(state));
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
    owed = { how, timer: setTimeout(() => write(how), 2000) };
  }
}

/**
 * Changes the state. A drag (`dragging`) or repeated keys on one slider (same `by`) are one step in the history and for
 * undo, and the URL changes when the drag ends; `replace` adds no step to the history.
 */
export function change(patch, { dragging = false, replace = false, by = "" } = {}) {
  const before = state;
  const more = Boolean(by) && by === last.by && Date.now() - last.at < 1500;
  const search = ["lasso", "near", "finding"].find((key) => patch[key]);
  state = { ...state, ...(search ? { lasso: null, near: null, finding: null } : {}), ...patch }; // there is one at a time
  if (dragging) drag ??= { recipe: before.recipe, off: before.off };
  else {
    if ("recipe" in patch || "off" in patch) remember(drag ?? before, more);
    drag = null;
    last = { by, at: Date.now() };
    write(replace || more ? "replaceState" : "pushState");
  }
  tell(before);
}

function remember(before, more) {
  const kept = { recipe: before.recipe, off: before.off };
  if (!more && JSON.stringify(kept) !== JSON.stringify({ recipe: state.recipe, off: state.off })) undone.push(kept);
}

export const canUndo = () => undone.length > 0;

export function undo() {
  const kept = undone.pop();
  if (!kept) return;
  const before = state;
  state = { ...state, ...kept };
  last = { by: "", at: 0 };
  write("pushState");
  tell(before);
}

/** Whether the page shows a saved subset that no recipe reproduces. Adding a step ends this. */
export const isSaved = (from = state) => from.recipe.saved !== undefined && !from.recipe.select.length;

/** Whether the recipe has no step, so that it keeps every pair. */
export const isEmpty = () => state.recipe.saved === undefined && !state.recipe.select.length;

/** The recipe without the steps that are switched off, as sent to the server. */
export function active(from = state) {
  if (isSaved(from)) return { name: from.recipe.name, saved: from.recipe.saved };
  const { saved, ...recipe } = from.recipe;
  return { ...recipe, select: from.recipe.select.filter((_, place) => !from.off.includes(place)) };
}

/** The known recipes among those in the URL, each once, up to the limit. "@" is the recipe on the page. */
export const comparable = (facts) => [...new Set(state.compared)].filter((name) => name === "@" || facts.recipes.some((entry) => entry.name === name)).slice(0, facts.compared);

/** The selected bar of the comparison; none if the URL was for another comparison. */
export const regionOf = (facts) => (state.region.length === comparable(facts).length ? state.region : []);

function tell(before) {
  for (const listener of listeners) listener(state, before);
}

export function address(from) {
  const words = new URLSearchParams();
  for (const [key, usual] of Object.entries(EMPTY)) {
    const value = JSON.stringify(from[key]);
    if (value !== JSON.stringify(usual)) words.set(key, value);
  }
  return `${location.pathname}${location.search}#${words}`;
}

/** Starts with a comparison of several recipes or the pairs next to one's cut, or only with the recipe if the URL says what to show. */
export function begin(recipe, names) {
  if (state.recipe !== EMPTY.recipe) return;
  const empty = address(state) === address(EMPTY);
  state = { ...state, recipe, ...(empty ? { sort: "cut" } : {}), ...(empty && names.length > 1 ? { view: "disagree", compared: names } : {}) };
  write("replaceState");
}

/** Shows what a saved view shows: a state as the end of an address. */
export function open(saved) {
  const before = state;
  read(saved);
  write("pushState");
  tell(before);
}

/** A list without an entry if it is there, else with it. */
export const toggled = (entries, entry) => {
  const same = (other) => JSON.stringify(other) === JSON.stringify(entry);
  return entries.some(same) ? entries.filter((other) => !same(other)) : [...entries, entry];
};

export function read(from = location.hash.slice(1)) {
  const found = { ...EMPTY };
  const left = [];
  for (const [key, value] of new URLSearchParams(from)) {
    try {
      const told = JSON.parse(value);
      if (!Object.hasOwn(FITS, key)) continue;
      if (FITS[key](told)) found[key] = told;
      else left.push(key);
    } catch {
      left.push(key); // an address that somebody cut short: the rest of it counts
    }
  }
  state = found;
  if (left.length) say(`Part of this link could not be read and was ignored: ${left.join(", ")}`, true);
}

window.addEventListener("popstate", () => {
  const before = state;
  clearTimeout(owed?.timer);
  owed = drag = null;
  read();
  tell(before);
});
