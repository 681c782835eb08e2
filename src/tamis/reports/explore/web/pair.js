// One pair, in full: its image, its texts, every score with its percentile, every recipe's verdict.

import { h, fill, foreign, brief, count, short, copy, who } from "./dom.js";
import { ask, imageUrl } from "./ask.js";
import { now, change, active, isEmpty } from "./state.js";
import { face } from "./grid.js";
import { isLabel, tagForm } from "./tags.js";

/** The recipe on the page, the subsets and the compared recipes by name, each once: [[name, recipe]]. */
function judges(facts) {
  const here = active();
  const same = ({ start }) => (start?.saved === undefined ? JSON.stringify(start?.select) === JSON.stringify(here.select) : start.saved === here.saved);
  const others = facts.recipes.filter((entry, place, all) => (entry.from === "subset" || now().compared.includes(entry.name)) && all.findIndex(({ name }) => name === entry.name) === place);
  const name = others.some((entry) => entry.name === here.name && !same(entry)) ? `${here.name}, as changed here` : here.name ?? "the recipe on the page";
  return [...(isEmpty() ? [] : [[name, here]]), ...others.filter((entry) => !same(entry)).map((entry) => [entry.name, entry.recipe])];
}

export class PairPanel {
  constructor(box, facts, tag, move) {
    this.box = box;
    this.facts = facts;
    this.tag = tag;
    this.move = move;
    this.input = tagForm("pair-tag", facts, tag);
    box.addEventListener("close", () => { if (now().pair !== null) change({ pair: null }); });
    box.addEventListener("click", (event) => { if (event.target === box) box.close(); });
  }

  async show(row) {
    if (row === null) {
      this.row = null;
      if (this.box.open) this.box.close();
      return;
    }
    this.row = row;
    if (!this.box.open) {
      fill(this.box, this.heading(null), h("div", { class: "pair waiting" }, h("p", { class: "quiet" }, "Reading …")));
      this.box.showModal();
    }
    let found;
    try {
      found = await ask("pair", { row, recipe: active(), recipes: judges(this.facts) });
    } catch (error) {
      fill(this.box, this.heading(null), h("p", { class: "problem" }, error.message));
      return;
    }
    if (this.row === row) this.draw(found);
  }

  heading(found) {
    return h("div", { class: "bar" },
      h("h2", null, found ? `Pair ${count(found.row)}` : "A pair"),
      // The box is there before the answer: what is typed at once would be keys.
      h("span", { class: "marks" },
        found && [...new Set(["good", "bad", ...found.tags])].map((tag) => {
          const on = found.tags.includes(tag);
          return h("button", { type: "button", id: `mark-${tag}`, class: `mark ${isLabel(tag)}`, "aria-pressed": String(on), title: isLabel(tag) ? tag[0] : "Untag",
            click: () => this.tag({ [on ? "remove" : "add"]: [tag] }) }, foreign(tag), isLabel(tag) ? "" : " ×");
        }), this.input.form),
      [[-1, "previous", "‹", "←"], [1, "next", "›", "→"]].map(([by, name, text, key]) => h("button", { type: "button", id: `${name}-pair`, title: `The ${name} pair (${key})`, "aria-label": `The ${name} pair`, click: () => this.move(by) }, text)),
      h("button", { type: "button", id: "close-pair", autofocus: true, title: "Close (Esc)", click: () => this.box.close() }, "Close"));
  }

  draw(found) {
    this.found = found;
    this.input.draw();
    const typing = document.activeElement === this.input.box; // which moves: else the next letters would be keys
    this.box.setAttribute("aria-label", `Pair ${count(found.row)}: ${brief(found.caption)}`);
    fill(this.box, this.heading(found),
      h("div", { class: "pair" },
        h("div", { class: "left" }, this.image(found)),
        h("div", { class: "right" },
          h("section", null, h("h3", null, "Caption"),
            found.caption ? h("blockquote", null, foreign(found.caption), found.caption_length > found.caption.length ? ` … (${count(found.caption_length)} characters)` : "") : h("p", { class: "quiet" }, "no caption")),
          this.verdicts(found), this.neighbours(found), this.scores(found),
          found.texts.map((text) => h("section", null, h("h3", null, text.name),
            h("ul", { class: "lines" }, text.lines.map((line, place) => h("li", { class: place === text.nearest ? "nearest" : null }, foreign(line),
              place === text.nearest ? h("span", { class: "tag" }, "nearest to the caption") : null))))),
          this.words(found), this.names(found))));
    this.box.scrollTop = 0;
    if (typing) this.input.box.focus({ preventScroll: true });
  }

  image(found) {
    const why = (kind) => (kind === "large" ? (found.status === "ok" ? "no image: the pool has none, or cannot be read" : `no image: ${found.status.replaceAll("_", " ")}`) : "the text cannot be painted over here: the detector that found it is not installed, or is another one");
    const large = (kind, alt) => h("img", { src: imageUrl(kind, found.row), alt, error: (event) => event.target.replaceWith(h("p", { class: "quiet" }, why(kind))) });
    const frame = h("div", { class: "frame" }, large("large", brief(found.caption)));
    const size = found.size[0] ? h("p", { class: "quiet" }, `${found.size[0]} × ${found.size[1]} pixels`) : null;
    if (found.painted !== "") return [frame, size];
    const swipe = h("button", { type: "button", id: "swipe", click: () => {
      const front = h("div", { class: "front" }, large("outlined", "The image, its text outlined"));
      fill(frame, large("painted", "The image, its text painted over"), front);
      frame.classList.add("swiped");
      const slide = h("input", { type: "range", min: 0, max: 100, value: "50", id: "swiper", "aria-label": "How much of the outlined image is shown", input: () => {
        front.style.clipPath = `inset(0 ${100 - slide.value}% 0 0)`;
      } });
      front.style.clipPath = "inset(0 50% 0 0)";
      swipe.replaceWith(slide);
      slide.focus();
    } }, "Text boxes and the painted-over image");
    return [frame, size, swipe];
  }

  verdicts(found) {
    if (!found.verdicts.length) return null;
    return h("section", null, h("h3", null, "Recipes"), h("ul", { class: "verdicts" }, found.verdicts.map((verdict) =>
      h("li", { class: verdict.kept === null ? "" : verdict.kept ? "kept" : "dropped" }, who({ name: verdict.name, colour: this.facts.recipes.find((entry) => entry.name === verdict.name)?.colour }), h("span", { class: "verdict" }, verdict.kept === null ? verdict.reason : verdict.kept ? `keeps it${verdict.times > 1 ? ` ${count(verdict.times)} times` : ""}` : `drops it. ${verdict.reason}`),
        verdict.repeats == null ? null : h("button", { type: "button", class: "original", title: "Open the pair that it repeats", click: () => change({ pair: verdict.repeats }) }, face({ row: verdict.repeats, status: "ok" }), ` Pair ${count(verdict.repeats)}`)))));
  }

  /** The scores that the recipe reads, each with its cuts, then the others folded; without such a score, all. */
  scores(found) {
    const read = found.scores.filter((score) => score.read);
    const rest = found.scores.filter((score) => !score.read);
    const at = (kind, share) => h("i", { class: kind, style: { left: `${100 * share}%` } });
    const table = (scores) => h("table", { class: "scores" },
      h("tr", null, h("th", null, "score"), h("th", null, "value"), h("th", null, "percentile")),
      scores.map((score) => h("tr", null,
        h("td", null, foreign(score.name)),
        h("td", null, short(score.value), score.cuts.length ? h("span", { class: "quiet" }, `, cut at ${score.cuts.map(([cut]) => short(cut)).join(" and ")}`) : null),
        h("td", null, score.percentile === null ? "–" : h("span", { class: "place" }, score.cuts.map(([, share]) => at("cut", share)), at("", score.percentile)), score.percentile === null ? "" : `${Math.round(100 * score.percentile)}`))));
    return h("section", null, h("h3", null, "Scores"), table(read.length ? read : rest),
      found.why.length ? h("p", { class: "quiet" }, foreign(found.why.join("; "))) : null,
      read.length && rest.length ? h("details", { id: "other-scores" }, h("summary", null, `${count(rest.length)} more`), table(rest)) : null);
  }

  words(found) {
    const some = found.words.filter(([, word]) => word);
    return some.length ? h("section", null, h("h3", null, "Words"), h("dl", null, some.map(([name, word]) => [h("dt", null, foreign(name)), h("dd", null, foreign(word))]))) : null;
  }

  names(found) {
    const line = (name, value) => value ? h("li", null, h("span", null, name), h("code", null, foreign(value)), h("button", { type: "button", "aria-label": `Copy ${name}`, click: () => copy(value, name) }, "Copy")) : null;
    return h("section", null, h("h3", null, "Names"), h("ul", { class: "names" }, line("uid", found.uid), line("key", found.key), line("shard", found.shard), line("url", found.url)));
  }

  neighbours(found) {
    if (!found.neighbours.length) return null;
    return h("section", null,
      h("div", { class: "bar" }, h("h3", null, "Nearest images"),
        h("button", { type: "button", id: "all-near", click: () => change({ near: { row: found.row }, sort: "row", view: "grid", pair: null }) }, "All of them")),
      h("div", { class: "strip" }, found.neighbours.map((other) => h("button", { type: "button", title: other.caption, click: () => change({ pair: other.row }) },
        face(other), h("span", null, short(other.cosine))))));
  }
}

