// Tags: the bar below the grid, the tags in use, the form that an opened pair has too, and the cuts that good and bad pairs suggest.

import { h, fill, foreign, count, percent, say } from "./dom.js";
import { ask } from "./ask.js";
import { now, change } from "./state.js";
import { nameOf, settingsOf } from "./recipe.js";

const SHOWN = 24; // tags in the bar; the box completes all

export const isLabel = (tag) => (["good", "bad"].includes(tag) ? tag : "");
export const chip = (tag) => h("span", { class: `label ${isLabel(tag)}` }, foreign(tag));

/** A box for tags, separated by commas. Its elements are created once, so that redraws keep focus and text. */
export function tagForm(id, facts, tag) {
  const list = h("datalist", { id: `${id}-list` });
  const box = h("input", { id, list: list.id, placeholder: "tag", maxlength: 400, autocomplete: "off", spellcheck: "false", "aria-label": "Tag" });
  const act = (key) => async (event) => {
    event.preventDefault();
    const text = box.value;
    const words = text.split(",").map((word) => word.trim()).filter(Boolean);
    if (!words.length) return;
    box.value = ""; // at once: the answer may come while the next tag is typed
    if (!await tag({ [key]: words })) box.value ||= text;
  };
  const form = h("form", { class: "tag-form", submit: act("add") }, box, list, h("button", null, "Tag"), h("button", { type: "button", title: "Remove this tag", click: act("remove") }, "Untag"));
  const draw = () => fill(list, facts.tags.counts.map(([word, rows]) => h("option", { value: word, label: `${count(rows)} ${rows === 1 ? "pair" : "pairs"}` })));
  return { form, box, draw };
}

export class TagBar {
  constructor(facts, grid, tag, undo) {
    this.facts = facts;
    this.grid = grid;
    this.input = tagForm("tag", facts, tag);
    this.input.box.addEventListener("keydown", (event) => { if (event.key === "Escape") grid.box.focus(); });
    this.target = h("span", { class: "target", role: "status" });
    this.all = h("button", { id: "select-all", type: "button", title: "Ctrl+A in the grid", click: () => grid.all() });
    this.none = h("button", { id: "select-none", type: "button", title: "Escape in the grid", click: () => grid.clear() }, "Clear");
    this.undo = h("button", { id: "undo-tags", type: "button", title: "Undo the last change of tags (u, Ctrl+Z)", click: undo });
    this.list = h("ul", { class: "filters", "aria-label": "Show pairs by tag" });
    this.cuts = h("details", { class: "cuts", open: matchMedia("(min-width: 62rem)").matches });
    this.offers = null; // an answer about the tags as they are
    const mark = (word) => h("button", { type: "button", id: `tag-${word}`, title: `Key ${word[0]}. From 10 good and 10 bad pairs on, the page suggests cuts`, click: () => tag({ add: [word] }) }, word);
    this.bar = h("section", { class: "bar tag-bar", "aria-label": "Tag pairs" }, this.target, this.all, this.none, mark("good"), mark("bad"), this.input.form, this.undo);
    this.box = h("section", { class: "tags", "aria-label": "Tags", hidden: true }, this.list, this.cuts);
    grid.selected = () => this.draw();
  }

  draw() {
    const { grid } = this;
    const { counts, undo } = this.facts.tags;
    const { tags } = now();
    const pairs = (rows) => `${count(rows)} ${rows === 1 ? "pair" : "pairs"}`;
    fill(this.target, grid.size ? `${pairs(grid.size)} selected` : "The framed pair");
    fill(this.all, `Select all ${count(grid.total)}`);
    this.all.disabled = !grid.total || grid.every;
    this.none.disabled = !grid.size;
    this.undo.hidden = !undo;
    if (undo) fill(this.undo, "Undo", h("span", null, `: ${undo.rows === 1 ? `pair ${count(undo.row)}` : pairs(undo.rows)}`));
    this.input.draw();
    // A click shows the pairs with the tag, a second one those without it, a third one all.
    const pick = (tag, text) => {
      const there = tags.find(([word]) => word === tag)?.[1];
      const others = tags.filter(([word]) => word !== tag);
      const next = there === undefined ? [[tag, true]] : there ? [[tag, false]] : [];
      return h("li", null, h("button", { type: "button", "aria-pressed": String(there !== undefined), class: isLabel(tag), title: there === undefined ? "Show these pairs" : there ? "Show the pairs without it" : "Show all", click: () => change({ tags: [...others, ...next] }) },
        there === false ? "not " : "", text));
    };
    this.box.hidden = !counts.length;
    fill(this.list, counts.length ? pick("", "tagged") : null, counts.slice(0, SHOWN).map(([tag, rows]) => pick(tag, [foreign(tag), ` ${count(rows)}`])));
  }

  /** What the recipe keeps of the good and bad pairs, and the cuts that separate them best. */
  async suggest(found) {
    const { good, bad } = found.labels;
    const all = (kind) => kind?.n ?? 0;
    const part = (kind, name) => (kind ? `${count(kind.kept)} of ${count(kind.n)} ${name}${kind.n < 5 ? "" : ` (${range([kind.low, kind.high])})`}` : "");
    if (!good && !bad) return fill(this.cuts);
    const line = h("summary", null, "This recipe keeps ", [part(good, "good"), part(bad, "bad")].filter(Boolean).join(" and "), ".");
    const asked = (this.offers ??= ask("suggestions"));
    const offers = await asked.catch((error) => say(error.message, true));
    if (!offers || asked !== this.offers) return undefined; // there are other tags now
    const { cuts, needed } = offers;
    if (Math.min(all(good), all(bad)) < needed) return fill(this.cuts, line, h("p", { class: "quiet" }, `Too few for a cut: it needs ${needed} good and ${needed} bad pairs (keys g and b), there are ${count(all(good))} and ${count(all(bad))}.`));
    if (!cuts.length) return fill(this.cuts, line, h("p", { class: "quiet" }, "No score separates good from bad."));
    return fill(this.cuts, line, h("ul", { class: "suggestions" }, cuts.slice(0, 3).map((cut) => this.offer(cut))),
      h("p", { class: "quiet" }, "Each cut keeps the most good and the fewest bad pairs (the largest difference of their shares, Youden's J). Precision and recall are measured on pairs that did not choose the cut (10-fold cross-validation). All ranges are 95 % intervals."));
  }

  offer(cut) {
    const step = () => {
      const { recipe, off } = now();
      const place = recipe.select.findIndex((each, at) => nameOf(each) === cut.keeps && settingsOf(each).score === cut.column && !off.includes(at));
      const select = [...recipe.select];
      select.splice(place < 0 ? select.length : place, 1, { [cut.keeps]: { missing: "drop", ...settingsOf(select[place] ?? ""), score: cut.column, value: cut.value } });
      change({ recipe: { ...recipe, select } });
    };
    const digits = (number) => Number(number.toPrecision(4));
    const share = (name, estimate) => `${name} ${estimate ? `${percent(estimate.value, 1)} (${range([estimate.low, estimate.high])})` : "unknown"}`;
    return h("li", null,
      h("button", { type: "button", title: "Put this cut into the recipe", click: step }, foreign(cut.column), ` ${cut.keeps === "at_least" ? "≥" : "≤"} ${cut.value}`),
      ` ${share("precision", cut.precision)}, ${share("recall", cut.recall)}; the cut is between ${digits(cut.low)} and ${digits(cut.high)}`);
  }
}

const range = (ends) => `${ends.map((end) => Math.round(100 * end)).join(" to ")} %`;
