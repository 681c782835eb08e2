// The recipe: a card per step with its slider and what it drops, and the YAML that `tamis select` reads.

import { h, fill, foreign, count, percent, short, copy, say, who } from "./dom.js";
import { ask } from "./ask.js";
import { now, change, active, undo, canUndo, isEmpty, isSaved } from "./state.js";

const NAMES = {
  __proto__: null,
  at_least: "at least", at_most: "at most", between: "between", top_fraction: "best share", top_n: "best n",
  equals: "is", random_fraction: "at random", distinct: "one of each image", sample: "with repeats",
};

export const CUTS = ["at_least", "at_most", "between"];
export const nameOf = (step) => (typeof step === "string" ? step : Object.keys(step)[0]);
export const settingsOf = (step) => (typeof step === "string" ? {} : typeof step.tagged === "string" ? [step.tagged] : step[nameOf(step)] ?? {});

/** The recipe on the page after choosing a subset or a shipped recipe as a start. */
export const startOf = (entry) => structuredClone({ select: [], ...entry.start, name: entry.from === "shipped" ? `my-${entry.name}` : entry.name });

const spoken = (key, value) => (key === "n" ? count(value) : key === "fraction" ? written(key, value) : short(value));

const JOINED = { __proto__: null, all_of: ", and ", any_of: ", or ", none_of: ", or " };

/** A step, or a list of them, as words: "english at least 0.02". */
function worded(step) {
  if (typeof step === "string") return step;
  if (Array.isArray(step)) return step.map(worded).join(", then ") || "every pair";
  const [name, { score, missing, ...rest }] = [nameOf(step), settingsOf(step)];
  if (JOINED[name]) return `(${name.replace("_", " ")}: ${settingsOf(step).map(worded).join(JOINED[name])})`;
  if (name === "tagged") return `tagged ${settingsOf(step).join(" or ")}`;
  if (name === "between") return `${score} from ${rest.low} to ${rest.high}`;
  if (name === "top_fraction" && rest.fraction) return `best ${written("fraction", rest.fraction)} by ${score}`;
  const values = Object.entries(rest).map(([key, value]) => `${key === "value" ? "" : `${key} `}${[value].flat().map((each) => (each !== null && typeof each === "object" ? JSON.stringify(each) : written(key, each))).join(" or ")}`);
  return [score, NAMES[name] ?? name.replaceAll("_", " "), values.join(", ")].filter(Boolean).join(" ");
}

/** A setting as its box shows it: shares in per cent. */
const written = (key, value) => (key === "fraction" && Number.isFinite(value) ? `${Number((100 * value).toPrecision(12))} %` : String(value ?? ""));

/** What was typed in a box: its value, or what is wrong; a note if it could have meant something else. */
function typed(box, key, rows) {
  const [, digits, sign] = /^\s*([-+]?[\d.,]+(?:e[-+]?\d+)?)\s*(%?)\s*$/i.exec(box.value) ?? [];
  const value = Number(digits?.replace(",", ".") || NaN);
  if (Number.isNaN(value)) return { wrong: "A number is needed here; the step is unchanged" };
  if (key === "n" && !(Number.isInteger(value) && value >= 0 && value <= rows)) return { wrong: `A whole number from 0 to ${count(rows)} is needed here, not ${digits}; the step is unchanged` };
  if (key !== "fraction") return { value };
  if (value < 0 || value > 100) return { wrong: `A share is from 0 to 100 %, not ${digits} %; the step is unchanged` };
  if (sign || value >= 1 || !value) return { value: value / 100 };
  return { value, note: `${digits} was read as ${written(key, value)}. For less than 1 %, type the sign: ${digits} %` };
}

/** A recipe without the numbers that its controls change: while this stays the same, so do the controls. */
export function shapeOf({ off, recipe }) {
  const moved = [...CUTS, "top_fraction", "random_fraction", "top_n"];
  const plain = (step) => Object.entries(settingsOf(step)).map(([key, value]) => [nameOf(step), key, typeof value === "number" ? 0 : value]);
  return JSON.stringify([off, recipe.saved, recipe.select.map((step) => (moved.includes(nameOf(step)) ? plain(step) : step))]);
}

/** The change of state that starts from a recipe: the pairs next to its cut are shown. From none: not the empty state, which opens with a recipe. */
const starting = (entry) => ({ recipe: entry ? startOf(entry) : { name: "my-recipe", select: [] }, off: [], reason: 0, sort: entry ? "cut" : "random", view: "grid" });

// Of runs with more rows, these are counted only when chosen: they may take minutes.
const LARGE = 100_000;
const SLOW = /clipcov|semdedup|image_based|density|\bd2\b/;

/** The recipes as a line of chips, each with the share that it keeps. A click starts from it. */
export class Chips {
  constructor(place, facts) {
    Object.assign(this, { place, facts, shares: new Map() });
  }

  draw() {
    this.shares.clear();
    const chip = (id, name, entry, about) => h("li", null, h("button", { type: "button", id, class: "chip", title: about, click: () => change(starting(entry)) }, name, entry ? this.share(entry) : ""));
    this.entries = this.facts.recipes.filter((entry) => entry.start && entry.kept !== null && !["no-filter", "random"].includes(entry.name));
    fill(this.place, h("h2", null, "Recipes"), h("ul", { class: "chips" }, chip("start-none", "every pair", null, "No recipe: all pairs"),
      this.entries.map((entry, number) => chip(`start-${number}`, who(entry), entry, entry.about ?? "A saved subset")),
      this.entries.length ? null : h("li", { class: "quiet" }, "No recipe fits this run yet")));
    this.mark();
  }

  share(entry) {
    const box = h("span", { class: "number" });
    this.shares.set(entry, box);
    this.show(entry);
    return box;
  }

  show(entry) {
    const box = this.shares.get(entry);
    if (entry.kept === null) box.closest("li").remove(); // it needs a file or a setting
    else if (entry.kept !== undefined) fill(box, percent(entry.kept, this.facts.rows), h("i", { style: { width: `${(100 * entry.kept) / this.facts.rows}%` } }));
  }

  /** Marks the recipe that the page shows unchanged. */
  mark() {
    const here = JSON.stringify(now().recipe.select);
    const same = (entry) => (entry.start.saved === undefined ? JSON.stringify(entry.start.select) === here : entry.start.saved === now().recipe.saved);
    for (const [entry, box] of this.shares) {
      box.closest("button").setAttribute("aria-pressed", String(same(entry)));
      if (same(entry)) box.closest("ul").scrollLeft = box.closest("li").offsetLeft - 60; // some of the chips before it stay in sight
    }
    this.place.querySelector("#start-none").setAttribute("aria-pressed", String(isEmpty()));
  }

  /** Counts what the recipes keep; the promise is of those with a threshold, which take milliseconds. */
  async count() {
    const slow = (entry) => SLOW.test(JSON.stringify(entry.recipe));
    const first = (entry) => !slow(entry) && entry.recipe.select?.some((step) => [...CUTS, "top_fraction", "top_n"].includes(nameOf(step)));
    for (const entry of this.entries.filter(first)) await this.ask(entry);
    const rest = this.entries.filter((entry) => !first(entry) && (this.facts.rows <= LARGE || !slow(entry)));
    rest.reduce((before, entry) => before.then(() => this.ask(entry)), Promise.resolve());
  }

  async ask(entry) {
    if (entry.cut === undefined) {
      // Without `signals`: the server would warn of each model that is not the recipe's own.
      const found = await ask("choose", { recipe: { ...entry.recipe, signals: undefined } }).catch(() => null);
      Object.assign(entry, { kept: found?.kept ?? null, cut: Math.max(0, ...(found?.cuts ?? []).map((cut) => cut.dropped)) });
    }
    if (this.shares.has(entry)) this.show(entry);
  }

  /** The recipe with the cut that drops most, if it keeps a tenth of the pairs: what the page opens with. */
  async strictest() {
    if (this.facts.rows > LARGE) return null;
    await this.counted;
    const some = this.entries.filter((entry) => entry.cut && entry.kept >= this.facts.rows / 10);
    return some.reduce((best, entry) => (entry.cut > (best?.cut ?? 0) ? entry : best), null);
  }
}

/** Columns as options of a list: scores, then those that are none. */
export function listed(columns, chosen) {
  const options = (score) => columns.filter((column) => column.score === score).map(({ name }) => h("option", { value: name, ...(name === chosen ? { selected: true } : {}) }, name));
  const others = options(false);
  return [options(true), others.length ? h("optgroup", { label: "other columns" }, others) : null];
}

/** The change of state that removes a step; the other steps stay on or off. */
export const without = (recipe, off, place) => ({
  recipe: { ...recipe, select: recipe.select.filter((_, index) => index !== place) },
  off: off.filter((each) => each !== place).map((each) => (each > place ? each - 1 : each)),
  reason: 0,
});

export class RecipePane {
  constructor(place, facts, stored) {
    this.place = place;
    this.facts = facts;
    this.stored = stored; // is called when a subset was saved
    this.saved = new Map(); // what was saved from here, by the recipe's name
    this.found = null;
    this.wrong = "";
    this.histograms = Object.create(null);
    this.yaml = h("pre", { tabindex: 0, "aria-label": "The recipe in YAML" });
    this.folded = h("details", null, h("summary", null, "YAML"), this.yaml); // one element: it stays open
    this.adding = this.adder();
  }

  /** Redraws everything; while a slider moves, `update` changes only the numbers. */
  draw() {
    const { recipe, off } = now();
    let live = -1;
    this.lines = [];
    const cards = recipe.select.map((step, place) => {
      const on = !off.includes(place);
      if (on) live += 1;
      return this.card(step, place, on, on ? live : null);
    });
    this.total = h("p", { class: "total" });
    this.models = h("div");
    this.problem = h("p", { class: "problem", role: "alert", hidden: true });
    fill(
      this.place,
      h("div", { class: "bar" },
        h("h2", null, "Recipe"),
        // Not `disabled`: that would take the focus from it.
        (this.undo = h("button", { id: "undo", type: "button", title: "Undo the last change of the recipe", click: undo }, "Undo")),
      ),
      this.total,
      this.models,
      this.problem,
      isSaved() ? h("p", { class: "quiet" }, "This is the saved subset. It was made from several subsets or runs, so it has no steps to change. If you add a step, it chooses from all pairs.") : null,
      h("ol", { class: "steps" }, cards),
      this.adding,
      this.folded,
      this.actions(),
    );
    this.update(this.found, this.wrong);
    this.load().catch((error) => say(error.message, true));
  }

  /** Shows the recipe's name and numbers in the controls that are there, so that a drag, a click or the next Tab finds them. */
  sync() {
    const { recipe } = now();
    this.place.querySelector("#recipe-name").value = recipe.name ?? "mine";
    for (const box of this.place.querySelectorAll(".step input")) {
      const [, place, key] = box.id.split("-");
      const value = settingsOf(recipe.select[place])[key];
      if (box.type === "range" && Number.isFinite(value)) {
        box.min = Math.min(box.min, value);
        box.max = Math.max(box.max, value);
        box.setAttribute("aria-valuetext", spoken(key, value));
      }
      box.value = box.type === "range" ? value ?? "" : written(key, value);
    }
  }

  /** Loads the value ranges of columns, which the sliders need. */
  async load() {
    const known = this.facts.columns.map((column) => column.name);
    const cut = now().recipe.select.filter((step) => CUTS.includes(nameOf(step))).map((step) => settingsOf(step).score);
    const lacking = [...new Set(cut)].filter((name) => known.includes(name) && !this.histograms[name]);
    if (!lacking.length) return;
    Object.assign(this.histograms, await ask("histograms", { columns: lacking }));
    this.draw();
  }

  card(step, place, on, live) {
    const name = nameOf(step);
    const settings = settingsOf(step);
    const { recipe, off } = now();
    const line = h("p", { class: "line" });
    const bar = h("div", { class: "share" }, h("i"));
    if (live !== null) this.lines[live] = { line, bar };
    const move = (by) => {
      const order = recipe.select.map((_, index) => index);
      [order[place], order[place + by]] = [order[place + by], order[place]];
      change({
        recipe: { ...recipe, select: order.map((index) => recipe.select[index]) },
        off: order.flatMap((index, to) => (off.includes(index) ? [to] : [])),
        reason: 0,
      });
    };
    const readable = name === "equals" && settings.score === "status" && JSON.stringify([settings.value].flat().sort()) === JSON.stringify(this.facts.readable);
    const what = readable ? "" : settings.score ?? settings.hash ?? "";
    return h("li", { class: on ? "step" : "step off" },
      h("div", { class: "bar" },
        h("h3", null, h("b", readable ? { title: `status is ${settings.value.join(" or ")}` } : null, readable ? "readable" : NAMES[name] ?? name.replaceAll("_", " ")), " ", foreign(what)),
        h("span", { class: "tools" },
          h("button", { type: "button", id: `up-${place}`, disabled: !place, title: "Earlier", "aria-label": `Move step ${place + 1} up`, click: () => move(-1) }, "↑"),
          h("button", { type: "button", id: `down-${place}`, disabled: place === recipe.select.length - 1, title: "Later", "aria-label": `Move step ${place + 1} down`, click: () => move(1) }, "↓"),
          h("button", {
            type: "button", id: `off-${place}`, "aria-pressed": String(!on), title: on ? "Switch off" : "Switch on",
            "aria-label": `Switch step ${place + 1} ${on ? "off" : "on"}`,
            click: () => change({ off: on ? [...off, place] : off.filter((each) => each !== place), reason: 0 }),
          }, on ? "◉" : "○"),
          h("button", {
            type: "button", id: `drop-${place}`, title: "Remove", "aria-label": `Remove step ${place + 1}`,
            click: () => change(without(recipe, off, place)),
          }, "×"),
        )),
      readable ? null : this.controls(name, settings, place),
      place === recipe.select.length - 1 ? this.curve(recipe.select) : null,
      on ? bar : null,
      on ? line : h("p", { class: "line" }, "switched off"),
    );
  }

  /** The scores of models over the share that the last step keeps, if `tamis choose --curve` trained some on these steps. */
  curve(select) {
    const steps = (some) => JSON.stringify(some.map((step, at) => (at < some.length - 1 ? step : [nameOf(step), { ...settingsOf(step), fraction: 0 }])));
    const found = this.facts.curves.find((each) => steps(each.select) === steps(select));
    return found && h("figure", { class: "chart curve" },
      h("svg", { class: "lines", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": "Score over the share" }, found.shapes.map((shape) => h(shape.d ? "path" : "line", shape))),
      h("figcaption", null, h("p", { class: "ends" }, h("span", null, percent(found.shares[0], 1)), h("span", null, percent(found.shares.at(-1), 1))), h("p", { class: "hint" }, `${found.verdict.join(". ")}.`)));
  }

  controls(name, settings, place) {
    const set = (changes, how) => this.set(place, { ...settingsOf(now().recipe.select[place]), ...changes }, how);
    const number = (key, label) => {
      const box = h("input", { ...(key === "fraction" ? { class: "percent", inputmode: "decimal", title: "Per cent" } : { type: "number", step: "any" }), id: `number-${place}-${key}`, value: written(key, settings[key]), "aria-label": `${label} of step ${place + 1}`,
        change: () => {
          const { value, wrong, note } = typed(box, key, this.facts.rows);
          box.setAttribute("aria-invalid", String(Boolean(wrong)));
          if (wrong || note) say(wrong ?? note, Boolean(wrong));
          if (!wrong) set({ [key]: value });
          if (!wrong) box.value = written(key, value);
        } });
      return box;
    };
    const slider = (key, low, high, step, label) =>
      h("div", { class: "slider" },
        h("input", {
          type: "range", id: `slider-${place}-${key}`, min: low, max: high, step, value: String(settings[key]),
          "aria-label": `${label} of step ${place + 1}`, "aria-valuetext": spoken(key, settings[key]),
          input: (event) => set({ [key]: Number(event.target.value) }, { dragging: true }),
          change: (event) => set({ [key]: Number(event.target.value) }, { by: event.target.id }),
        }),
        number(key, label));
    if (CUTS.includes(name)) {
      const range = this.range(settings);
      const limit = (key, label) => (range ? slider(key, ...range, label) : h("div", { class: "slider" }, h("span", null), number(key, label)));
      return name === "between" ? [limit("low", "Lower end"), limit("high", "Upper end")] : limit("value", "Limit");
    }
    if (name === "top_fraction" || name === "random_fraction") return slider("fraction", 0, 1, 0.005, "Share");
    if (name === "top_n") return slider("n", 0, this.facts.rows, 1, "Number");
    const rest = Object.entries(settings).filter(([key]) => !["score", "missing"].includes(key));
    if (Array.isArray(settings)) return h("p", { class: "quiet" }, foreign(settings.map(worded).join(JOINED[name] ?? ", ")));
    return rest.length ? h("p", { class: "quiet" }, rest.map(([key, value]) => [key === "value" ? "" : `${key} `, foreign(Array.isArray(value) ? value.join(" or ") : typeof value === "object" ? JSON.stringify(value) : value), " "])) : null;
  }

  /** Minimum, maximum and step of a cut's slider; null if the column's range is unknown. */
  range(settings) {
    const histogram = this.histograms[settings.score];
    if (histogram?.ends[0] == null) return null;
    // The slider is extended to a limit beyond the column's values.
    const limits = [settings.value, settings.low, settings.high].filter(Number.isFinite);
    const [low, high] = [Math.min(...histogram.ends, ...limits), Math.max(...histogram.ends, ...limits)];
    const fine = high > low ? 10 ** Math.floor(Math.log10((high - low) / 400)) : 0.01;
    const step = histogram.whole ? Math.max(1, fine) : fine;
    const grid = (value, round) => Number((round(Number((value / step).toFixed(6))) * step).toPrecision(12));
    return [grid(low, Math.floor), grid(high, Math.ceil), step];
  }

  set(place, settings, how) {
    const { recipe } = now();
    const select = recipe.select.map((step, index) => (index === place ? { [nameOf(step)]: settings } : step));
    change({ recipe: { ...recipe, select } }, how);
  }

  adder() {
    const kind = h("select", { id: "add-kind", "aria-label": "Kind of the new step" },
      ["at_least", "at_most", "between", "top_fraction", "equals", "tagged", "random_fraction", ...(this.facts.hashes ? ["distinct"] : [])]
        .map((name) => h("option", { value: name }, NAMES[name])));
    const column = h("select", { id: "add-column", "aria-label": "Column of the new step" });
    const value = h("input", { id: "add-value", placeholder: "word", "aria-label": "Word of the new step", hidden: true });
    const offer = () => {
      const words = kind.value === "equals";
      fill(column, words ? this.facts.words.map((name) => h("option", { value: name }, name)) : listed(this.facts.columns));
      column.hidden = ["random_fraction", "distinct", "tagged"].includes(kind.value);
      value.hidden = !words && kind.value !== "tagged";
    };
    kind.addEventListener("change", offer);
    offer();
    const steps = async () => {
      const name = kind.value;
      if (name === "random_fraction") return { random_fraction: { fraction: 0.5, seed: 0 } };
      if (name === "tagged") return { tagged: value.value.split(",").map((tag) => tag.trim()) };
      if (name === "distinct") return { distinct: { missing: "drop" } };
      if (name === "top_fraction") return { top_fraction: { score: column.value, fraction: 0.5, missing: "drop" } };
      if (name === "equals") return { equals: { score: column.value, value: value.value, missing: "drop" } };
      const ends = (await this.ends(column.value)).map((end) => end ?? 0);
      if (name === "between") return { between: { score: column.value, low: ends[0], high: ends[1], missing: "drop" } };
      return { [name]: { score: column.value, value: name === "at_least" ? ends[0] : ends[1], missing: "drop" } };
    };
    return h("form", {
      class: "adder",
      submit: async (event) => {
        event.preventDefault();
        const step = await steps();
        const { recipe } = now();
        change({ recipe: { ...recipe, select: [...recipe.select, step] } });
      },
    }, kind, column, value, h("button", { id: "add" }, "Add step"));
  }

  actions() {
    const { recipe } = now();
    const name = h("input", { id: "recipe-name", value: recipe.name ?? "mine", "aria-label": "Name of the recipe", spellcheck: "false",
      change: (event) => change({ recipe: { ...now().recipe, name: event.target.value } }) });
    const save = async (replace) => {
      const chosen = active();
      let saved;
      try {
        saved = await ask("save", { recipe: chosen, replace });
      } catch (error) {
        again.hidden = !/already/.test(error.message);
        say(error.message, true);
        return;
      }
      say(`${count(saved.kept)} pairs saved in ${saved.subset}`);
      this.saved.set(chosen.name, { ...saved, text: JSON.stringify(chosen) });
      const entries = this.facts.recipes;
      const entry = { name: chosen.name, recipe: chosen, start: chosen, from: "subset", colour: saved.colour };
      const known = entries.findIndex((each) => each.from === "subset" && each.name === chosen.name);
      if (known < 0) entries.unshift(entry);
      else entries[known] = entry;
      if (again === document.activeElement) document.getElementById("save").focus();
      again.hidden = true;
      this.stored();
    };
    const again = h("button", { id: "replace", type: "button", hidden: true, click: () => save(true) }, "Replace it");
    const quoted = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
    return h("div", { class: "actions" },
      h("label", { class: "field" }, "Name ", name),
      h("button", { id: "save", type: "button", class: "main", disabled: isSaved(), click: () => save(false) }, "Save subset"), again,
      h("button", { id: "copy-recipe", type: "button", disabled: isSaved(), click: () => copy(this.found?.yaml ?? "", "Recipe") }, "Copy recipe"),
      h("button", {
        id: "copy-export", type: "button",
        title: "The command that writes these pairs for a trainer",
        click: () => {
          const chosen = active();
          if (this.found?.command) {
            copy(this.found.command, "Command");
            return;
          }
          const saved = this.saved.get(chosen.name);
          if (saved?.text !== JSON.stringify(chosen)) {
            say("Save the subset first: the command exports the saved file, which is not what is shown", true);
            return;
          }
          copy(`tamis export ${quoted(this.facts.run)} ${quoted(saved.subset)} ${quoted(`${chosen.name}.npy`)} --to npy`, "Export command");
        },
      }, this.facts.static ? "Copy command" : "Copy export command"));
  }

  async ends(column) {
    this.histograms[column] ??= (await ask("histograms", { columns: [column] }))[column];
    return this.histograms[column].ends;
  }

  /** Shows the server's answer. */
  update(found = this.found, problem = "") {
    this.found = found;
    this.wrong = problem;
    if (!this.total) return;
    this.undo.setAttribute("aria-disabled", String(!canUndo()));
    this.problem.hidden = !problem;
    this.problem.textContent = problem;
    if (!found) return;
    fill(this.total, isEmpty() ? "No step yet, so every pair is kept. Start from a recipe above, add a step, or drag over a histogram."
      : [h("strong", null, percent(found.kept, found.rows)), " kept", found.times === found.kept ? "" : `, ${count(found.times)} pairs with repeats`]);
    this.total.classList.toggle("quiet", isEmpty());
    fill(this.models, found.models.map((sentence) => h("p", { class: "quiet" }, `${sentence}.`)));
    this.yaml.textContent = found.yaml;
    found.funnel.forEach((line, place) => {
      const shown = this.lines[place];
      if (!shown) return;
      const fallen = line.before - line.kept;
      const lacking = line.dropped.missing ?? 0;
      const cut = typeof line.cut === "number" && line.step.startsWith("top ") ? `, the cut is ${short(line.cut)}` : "";
      fill(shown.line, `−${count(fallen)}${cut}`, lacking ? `, ${count(lacking)} without a value` : "", h("span", null, `${count(line.kept)} left${line.times ? `, ${count(line.times)} times` : ""}`));
      shown.bar.firstChild.style.width = `${(100 * line.kept) / Math.max(1, found.rows)}%`;
    });
  }
}
