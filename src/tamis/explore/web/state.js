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

let drag = null; // the recipe that stood before something was dragged; its place in the history is made once
let last = { by: "", at: 0 };
let owed = null; // a write of the address that the browser refused

/** Writes the address. Firefox and Safari refuse it after 100 to 200 times in some seconds: it is written later then. */
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
 * Changes the state. Of a drag (`dragging`) and of key after key on one slider (`by` the same one) the history and undo
 * know one step, and the address follows when the drag ends; `replace` leaves the history as long as it is.
 */
export function change(patch, { dragging = false, replace = false, by = "" } = {}) {
  const before = state;
  const more = Boolean(by) && by === last.by && Date.now() - last.at < 1500;
  state = { ...state, ...patch };
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

/** The recipe without the steps that are switched off: what is asked of the server. */
export function active(from = state) {
  return { ...from.recipe, select: from.recipe.select.filter((_, place) => !from.off.includes(place)) };
}

/** The recipes that the address names to be compared: those that are here, each once, as many as can be. "@" is the page's. */
export const comparable = (facts) => [...new Set(state.compared)].filter((name) => name === "@" || facts.recipes.some((entry) => entry.name === name)).slice(0, facts.compared);

/** The bar of the comparison whose pictures are shown; none where the address means another comparison. */
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

export function read() {
  const found = { ...EMPTY };
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    try {
      const told = JSON.parse(value);
      if (key in EMPTY && (!Array.isArray(EMPTY[key]) || Array.isArray(told))) found[key] = told;
    } catch {
      // an address that somebody cut short: the rest of it counts
    }
  }
  if (!Array.isArray(found.recipe?.select)) found.recipe = EMPTY.recipe;
  state = found;
}

window.addEventListener("popstate", () => {
  const before = state;
  clearTimeout(owed?.timer);
  owed = drag = null;
  read();
  tell(before);
});
