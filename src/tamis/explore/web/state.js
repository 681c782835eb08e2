// All that the page shows follows from this, and this stands in the address: back, forward and a copied link work.

export const EMPTY = Object.freeze({
  recipe: { name: "mine", select: [] },
  off: [], // numbers of steps that are switched off
  view: "grid",
  show: "all",
  reason: 0,
  ranges: [],
  words: [],
  caption: "",
  sort: "random",
  column: "",
  descending: true,
  region: [],
  compared: [],
  charts: null,
  heat: null,
  lasso: null,
  near: null,
  pair: null,
});

let state = { ...EMPTY };
const listeners = [];
const undone = [];

export const now = () => state;

export function listen(listener) {
  listeners.push(listener);
}

/** Changes the state. `quiet` while something is dragged: the address follows, the history does not. */
export function change(patch, { quiet = false } = {}) {
  const before = state;
  state = { ...state, ...patch };
  if (("recipe" in patch || "off" in patch) && !quiet) remember(before);
  history[quiet ? "replaceState" : "pushState"](null, "", address(state));
  tell(before);
}

let lasting = null; // the recipe that stood before something was dragged

function remember(before) {
  const kept = lasting ?? { recipe: before.recipe, off: before.off };
  lasting = null;
  if (JSON.stringify(kept) !== JSON.stringify({ recipe: state.recipe, off: state.off })) undone.push(kept);
}

/** Begins a drag: what stood before it is what undo brings back. */
export function begin() {
  lasting ??= { recipe: state.recipe, off: state.off };
}

export const canUndo = () => undone.length > 0;

export function undo() {
  const last = undone.pop();
  if (!last) return;
  const before = state;
  state = { ...state, ...last };
  history.pushState(null, "", address(state));
  tell(before);
}

/** The recipe without the steps that are switched off: what is asked of the server. */
export function active(from = state) {
  return { ...from.recipe, select: from.recipe.select.filter((_, place) => !from.off.includes(place)) };
}

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

export function read() {
  const found = { ...EMPTY };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    try {
      if (key in EMPTY) found[key] = JSON.parse(value);
    } catch {
      // an address that somebody cut short: the rest of it counts
    }
  }
  if (!Array.isArray(found.recipe?.select)) found.recipe = EMPTY.recipe;
  state = found;
}

window.addEventListener("popstate", () => {
  const before = state;
  read();
  tell(before);
});
