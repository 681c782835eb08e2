// The page: updates after a change of state, and keyboard shortcuts.

import { h, fill, foreign, count, copy, say } from "./dom.js";
import { ask, newest } from "./ask.js";
import { now, change, listen, read, begin, active, comparable, isEmpty } from "./state.js";
import { Chips, RecipePane, shapeOf, startOf } from "./recipe.js";
import { ScoresPane, telling } from "./charts.js";
import { Grid, Controls, gridQuestion } from "./grid.js";
import { PairPanel } from "./pair.js";
import { TagBar } from "./tags.js";
import { MapView } from "./map.js";
import { Columns } from "./compare.js";
import { CopiesView } from "./copies.js";
import { disagree, findings, rejects } from "./views.js";
import { follow, measured } from "./measure.js";

const VIEWS = { grid: "Grid", findings: "Findings", disagree: "Disagree", map: "Map", copies: "Copies", rejects: "Rejects" };
const FILTERS = ["show", "reason", "ranges", "words", "tags", "captions", "caption", "sort", "column", "descending", "region", "lasso", "near", "finding"];
const KEYS = [
  ["j k, arrows, Home, End", "move to another pair; j, k, ← and → also in an opened one"], ["Enter, click", "open the pair"], ["Esc", "close the pair; select none"],
  ["Space, Ctrl + click", "select the pair, or take it out"], ["Shift + arrows, Shift + click", "select a range"], ["Ctrl + A", "select all pairs of the view"],
  ["t", "type tags; Enter gives them, Esc returns to the pairs"], ["g, b", "tag good, bad"], ["u, Ctrl + Z", "undo the last change of tags"], ["o", "open the pair that a copy repeats"],
  ["arrows, + − 0", "on the map: move, zoom, show all of it"], ["Shift + drag", "on the map: draw a lasso; on a histogram: show these pairs"], ["?", "show this table"],
];
const place = (id) => document.getElementById(id);
const keys = h("dialog", { id: "keys", "aria-labelledby": "keys-title", close: () => keys.remove() },
  h("div", { class: "bar" }, h("h2", { id: "keys-title" }, "Keys"), h("button", { type: "button", click: () => keys.close() }, "Close")),
  h("table", null, KEYS.map(([key, does]) => h("tr", null, h("th", { scope: "row" }, h("kbd", null, key)), h("td", null, does)))),
  h("p", { class: "hint" }, "Letters work while the pairs or an opened pair have the focus."));

function showKeys() {
  document.body.append(keys);
  keys.showModal();
}

let facts;
let found = null; // what the server said of the recipe
let chips, recipe, scores, controls, panel, map, tags;
let copies, pairs, sides; // the grid of most views, and those of a comparison of two recipes
let grid; // the one of them that keys and tags act on
const parts = {}; // of the main pane

const recipeOf = (name) => (name === "@" ? active() : facts.recipes.find((entry) => entry.name === name)?.recipe);
const compared = () => comparable(facts).map(recipeOf);

/** Scores on the cards: the columns in the recipe and in the order. */
function columns() {
  const known = facts.columns.map((column) => column.name);
  const read = [now().column, ...now().recipe.select.map((step) => (typeof step === "string" ? "" : Object.values(step)[0]?.score)), ...now().ranges.map(([name]) => name)];
  const some = [...new Set(read)].filter((name) => known.includes(name));
  return (some.length ? some : telling(facts)).slice(0, 2);
}

const asks = newest((question) => ask("choose", question));

async function choose() {
  let said;
  try {
    said = await asks({ ...question(), near: null, columns: scores.columns() });
  } catch (error) {
    recipe.update(found, error.message);
    return false;
  }
  if (said === undefined) return false; // a newer one is on its way
  found = said;
  recipe.update(found);
  scores.update(found);
  head();
  return true;
}

function head() {
  fill(place("head"),
    h("h1", null, h("span", { class: "brand" }, "Tamis"), " ", foreign(facts.run)),
    facts.missing && !place("measured") ? h("p", { class: "quiet" }, `${count(facts.missing)} shards are missing`) : null,
    facts.drawn.map((sentence) => h("p", { class: "quiet" }, `${sentence}.`)),
    found ? h("p", { class: "kept-head" }, found.estimated ? "about " : "", h("strong", { id: "kept" }, count(found.kept)), isEmpty() ? " pairs" : ` of ${count(facts.rows)} pairs kept`) : null,
    h("button", { id: "show-keys", type: "button", title: "Keys (?)", "aria-label": "Keys", click: showKeys }, "?"),
    h("button", { id: "copy-link", type: "button", title: "Copy a link to exactly this view; it works while this server runs", click: () => copy(location.href, "Link") }, "Copy link"));
}

const question = () => gridQuestion(facts, columns, compared);

/** The view Rejects starts with all dropped pairs, the others with all pairs. */
function shownIn(view) {
  const { view: before, show } = now();
  if (view === "rejects" && show === "all") return { show: "dropped" };
  return before === "rejects" && view !== "rejects" && show === "dropped" ? { show: "all" } : {};
}

/** The parts of the main pane are created once; changing the view hides some and fills others. */
function makeMain() {
  parts.above = h("div", { class: "above" });
  parts.tabs = h("nav", { class: "tabs", "aria-label": "Views" });
  parts.heading = h("h2", { class: "unseen" });
  fill(place("main"), parts.tabs, parts.heading, parts.above, controls.box, tags.box, sides.box, pairs.told, pairs.heads, pairs.box, tags.bar);
}

function drawTabs() {
  const state = now();
  fill(parts.tabs, Object.entries(VIEWS).map(([name, text]) =>
    h("button", { type: "button", id: `view-${name}`, "aria-current": state.view === name ? "page" : null, click: () => change({ view: name, ...shownIn(name) }) }, text, name === "findings" && facts.findings ? h("span", { class: "number" }, ` ${facts.findings}`) : null)));
  parts.tabs.scrollLeft = parts.tabs.querySelector("[aria-current]").offsetLeft - parts.tabs.offsetLeft - 60; // on a phone they do not fit
}

function drawMain() {
  const state = now();
  drawTabs();
  parts.heading.textContent = VIEWS[state.view];
  fill(parts.above);
  place("main").classList.toggle("beside", state.view === "map");
  controls.draw(found);
  drawView();
}

/** The grids of the view. */
const grids = () => (now().view === "copies" ? [] : now().view === "disagree" && comparable(facts).length === 2 ? sides.grids : [pairs]);

/** Makes a grid the one that keys and tags act on. */
function use(other) {
  if (grid === other) return;
  grid?.clear(); // else its pairs would look selected, and not be tagged
  grid = tags.grid = other;
  tags.draw();
}

async function drawView() {
  const shown = grids();
  for (const part of [controls.box, tags.bar]) part.hidden = !shown.length;
  for (const part of [pairs.told, pairs.box]) part.hidden = !shown.includes(pairs);
  pairs.heads.hidden ||= !shown.includes(pairs);
  sides.box.hidden = !shown.length || shown.includes(pairs);
  place("main").classList.toggle("comparing", !sides.box.hidden);
  if (!shown.includes(grid)) use(shown[0] ?? pairs);
  try {
    if (now().view === "disagree") await disagree(parts.above, facts, compared, sides);
    else if (now().view === "map") await (map ??= new MapView(facts, compared, columns)).draw(parts.above);
    else if (now().view === "copies") await copies.draw(parts.above);
    else if (now().view === "findings") await findings(parts.above);
    else if (now().view === "rejects") rejects(parts.above, facts, found);
    else fill(parts.above);
  } catch (error) {
    fill(parts.above, h("p", { class: "problem" }, error.message));
  }
}

const load = () => Promise.all(grids().map((each) => each.load()));
const reload = newest(load);

listen(async (state, before) => {
  const changed = (...keys) => keys.some((key) => JSON.stringify(state[key]) !== JSON.stringify(before[key]));
  document.title = `${state.recipe.name ?? "Tamis"} · Tamis`;
  const recipeChanged = changed("recipe", "off");
  if (recipeChanged && shapeOf(state) === shapeOf(before)) recipe.sync();
  else if (recipeChanged) recipe.draw();
  if (recipeChanged) chips.mark();
  if (changed("charts", "heat")) await scores.draw();
  else if (recipeChanged && !sameColumns()) await scores.draw();
  else if (changed("ranges")) scores.update();
  if (changed("view")) drawMain();
  const narrowed = changed("captions", "caption", "ranges", "words", "tags", "region", "reason", "lasso", "finding") && found && !recipeChanged; // the charts follow
  if (recipeChanged || (changed("charts") && found)) await choose();
  if (recipeChanged || changed(...FILTERS, "view", "compared")) {
    controls.draw(found);
    const answers = [reload(), narrowed ? choose() : null];
    if (changed("captions", "caption")) controls.wait(answers);
  }
  if (changed("size")) {
    controls.draw(found);
    for (const each of grids()) each.lay(true);
  }
  if (recipeChanged && found) tags.suggest(found);
  if (changed("tags")) tags.draw();
  if (!changed("view") && (recipeChanged || changed("compared", "region", "reason", "words", "lasso", "map", "finding") || (state.view === "grid" && changed(...FILTERS)))) drawView();
  if (changed("pair")) panel.show(state.pair);
});

const sameColumns = () => JSON.stringify(scores.columns()) === JSON.stringify([...scores.charts.keys()]);

/** Tags the opened pair, else the selected pairs, else the framed one: { add: [], remove: [] }. */
function tag(changes) {
  const target = now().pair !== null ? { rows: [now().pair] } : grid.target();
  const what = [["add", "tagged"], ["remove", "no longer tagged"]].filter(([key]) => changes[key]).map(([key, text]) => `${text} ${changes[key].join(", ")}`).join(", ");
  return target && retag("tag", { ...target, ...changes }, what);
}

const untag = () => retag("undo_tags", {}, "as before");

/** Changes tags or undoes the last change; the answer has the tags of the changed pairs unless they are many. */
async function retag(name, about, what) {
  let said;
  try {
    said = await ask(name, about);
  } catch (error) {
    say(error.message, true);
    facts.tags = (await ask("facts").catch(() => facts)).tags; // a part may be written
    tags.draw();
    load();
    return false;
  }
  facts.tags = said.tags;
  tags.offers = null;
  tags.draw();
  const opened = panel.found?.row;
  if (said.rows) for (const each of grids()) each.tagged(said.rows);
  else load();
  if (opened !== undefined && opened === now().pair) said.rows?.[opened] ? panel.draw({ ...panel.found, tags: said.rows[opened] }) : panel.show(opened);
  say(`${count(said.changed)} ${said.changed === 1 ? "pair is" : "pairs are"} ${what}`);
  await choose();
  controls.draw(found);
  if (found) tags.suggest(found);
  if (/tagged|label/.test(JSON.stringify([active(), compared()]))) {
    if (map) map.key = ""; // else it would keep its colours
    drawView();
    reload();
  }
  return true;
}

/** Opens the pair that the opened pair, else the framed one, repeats. */
function openOriginal() {
  const { repeats } = panel.box.open ? panel.found?.verdicts.find((verdict) => verdict.repeats != null) ?? {} : grid.at(grid.cursor) ?? {};
  if (repeats != null) change({ pair: repeats });
}

document.addEventListener("keydown", (event) => {
  const act = {
    j: () => grid.move(1), k: () => grid.move(-1),
    o: openOriginal, g: () => tag({ add: ["good"] }), b: () => tag({ add: ["bad"] }), u: untag, t: () => (panel.box.open ? panel.input : tags.input).box.focus(),
  }[(event.ctrlKey || event.metaKey) && event.key === "z" ? "u" : event.ctrlKey || event.metaKey || event.altKey ? "" : event.key];
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "?" && !typing && !keys.open) showKeys();
  if (keys.open) return;
  // Letters are keys where the pairs, or an opened pair, have the focus. Elsewhere the user may be typing.
  const opened = panel?.box.open && !typing;
  if (opened && ["ArrowLeft", "ArrowRight"].includes(event.key)) grid.move(event.key === "ArrowLeft" ? -1 : 1);
  if (!grid?.box.contains(event.target) && !opened) {
    if (act && event.target === document.body) say("Keys work while the pairs have the focus: press Tab, or click between pairs (? lists the keys)");
  } else if (act) {
    event.preventDefault();
    act();
  } else if (event.key === "Enter" && event.target === grid.box && grid.here() !== null) {
    event.preventDefault(); // else the same key presses the button that the opened pair gives the focus to: Close
    change({ pair: grid.here() });
  }
});

// Not by a link: its #fragment would be read as a state of the page.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  (now().view === "copies" ? place("main") : grid?.box)?.focus();
});

/** Counts the findings, unless that takes long: their number is next to the name of their view. */
async function countFindings() {
  if (facts.rows > 100_000) return;
  facts.findings = (await ask("findings").catch(() => null))?.findings.length;
  drawTabs();
}

/** Shows a run that has more shards now, with what the user has set, typed and opened. */
async function grow() {
  Object.assign(facts, await ask("facts"));
  for (const name of Object.keys(recipe.histograms)) delete recipe.histograms[name];
  map = undefined;
  tags.offers = null;
  chips.draw();
  chips.counted = chips.count();
  recipe.draw();
  drawMain();
  tags.draw();
  await Promise.all([scores.draw(), choose(), ...grids().map((each) => each.load(true))]);
  controls.draw(found);
  if (now().view === "rejects") drawView();
  if (now().pair !== null) panel.show(now().pair);
  countFindings();
}

const wide = matchMedia("(min-width: 62rem)");

// On a narrow screen the pairs come first; recipe and scores start folded.
const folds = () => document.querySelectorAll("details.fold").forEach((fold) => { fold.open = wide.matches; });

async function start() {
  read();
  folds();
  await measured(place("main"));
  facts = await ask("facts");
  const histograms = Object.create(null); // by names of columns: one may be called "constructor"
  chips = new Chips(place("recipes"), facts);
  scores = new ScoresPane(place("scores"), facts, histograms);
  scores.question = () => ({ ...question(), near: null });
  recipe = new RecipePane(place("recipe"), facts, () => { chips.draw(); drawView(); reload(); });
  recipe.histograms = histograms;
  grid = pairs = new Grid(question);
  controls = new Controls(facts);
  tags = new TagBar(facts, grid, tag, untag);
  copies = new CopiesView(facts, retag);
  sides = new Columns(question, compared, use);
  for (const each of sides.grids) each.selected = pairs.selected;
  panel = new PairPanel(place("pair"), facts, tag, (by) => grid.move(by));
  head();
  chips.draw();
  chips.counted = chips.count();
  const given = facts.recipes.filter((entry) => entry.from === "subset").slice(0, facts.compared);
  const strictest = given.length || location.hash ? null : chips.strictest();
  let opened = given[0] ?? await Promise.race([strictest, new Promise((done) => setTimeout(done, 300))]);
  makeMain();
  if (opened === undefined) { // recipes are counted slowly: the images come first
    recipe.draw();
    drawMain();
    await load();
    opened = await strictest;
  }
  if (opened && (given.length || !location.hash)) begin(startOf(opened), given.map((entry) => entry.name)); // else the user has begun
  chips.mark();
  recipe.draw();
  drawMain();
  await Promise.all([scores.draw(), choose(), load()]);
  controls.draw(found);
  if (now().view === "rejects") drawView();
  if (found) tags.suggest(found);
  if (now().pair !== null) {
    grid.find(now().pair); // the focus returns to its card
    panel.show(now().pair);
  }
  wide.addEventListener("change", () => { folds(); for (const each of grids()) each.lay(true); });
  document.body.classList.add("ready");
  countFindings();
  follow(grow, () => grid);
  if (facts.searchable) ask("warm").catch(() => {}); // the search reports what is wrong
}

start().catch((error) => {
  for (const pane of ["recipe", "scores"]) fill(place(pane));
  fill(place("main"), h("p", { class: "problem", role: "alert" }, error.message), h("button", { id: "again", type: "button", click: () => location.reload() }, "Try again"));
});
