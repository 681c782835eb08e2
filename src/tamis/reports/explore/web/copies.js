// Groups of repeated images: the pair that stays next to its copies, how near copies are, which pair of a group stays.

import { h, fill, foreign, count, percent, need } from "./dom.js";
import { ask, newest } from "./ask.js";
import { now, change, active, isSaved } from "./state.js";
import { face } from "./grid.js";
import { chip, tagForm } from "./tags.js";
import { settingsOf } from "./recipe.js";

const PAGE = 24; // groups
const asked = newest((question) => ask("copies", question));

export class CopiesView {
  /** `retag(name, about, what)` changes tags as main.js does. */
  constructor(facts, retag) {
    this.facts = facts;
    this.retag = retag;
    this.group = null; // a row of the group that is being tagged
    this.input = tagForm("group-tag", facts, (changes) => this.change({ ...this.of(this.group), ...changes }, `${changes.add ? "tagged" : "no longer tagged"} ${Object.values(changes)[0].join(", ")}`));
    this.told = h("p", { class: "told", role: "status" });
    this.note = h("div", { class: "told" });
    this.value = h("output", { for: "copies-distance" });
    this.slider = h("input", { type: "range", id: "copies-distance", min: 0, step: 1, input: () => this.look({ distance: Number(this.slider.value), start: 0 }) });
    this.use = h("button", { type: "button", id: "use-distance", click: () => this.settle({ distance: this.distance ?? this.found.distance }) });
    this.near = h("div", { class: "bar near-copies" }, h("label", { for: "copies-distance" }, "Copies differ in at most"), this.slider, this.value, this.use);
    this.pager = h("nav", { class: "bar", "aria-label": "Groups" });
    this.list = h("div", { class: "groups", keydown: (event) => this.key(event) });
  }

  async draw(place) {
    const recipe = JSON.stringify(active());
    if (recipe !== this.recipe) Object.assign(this, { recipe, distance: null, start: 0 });
    if (!this.found) {
      this.near.hidden = true;
      fill(this.told, "Looking for copies …");
    }
    fill(place, this.note, this.near, this.told, this.pager, this.list);
    await this.look({});
  }

  /** Asks for other groups: of a distance, from a place on. */
  async look(changes) {
    Object.assign(this, changes);
    this.told.classList.add("waiting");
    const found = await asked({ recipe: active(), distance: this.distance, start: this.start, count: PAGE });
    if (!found) return; // a newer question is on its way
    this.told.classList.remove("waiting");
    this.found = found;
    const { groups, copies, pairs, shown } = found;
    const bits = this.distance ?? found.distance;
    fill(this.note, this.about(found));
    this.near.hidden = found.most === null;
    this.slider.max = found.most ?? bits ?? 0; // before the value, which it would limit
    this.slider.value = bits ?? 0;
    this.slider.setAttribute("aria-valuetext", `${bits} of 64 bits`);
    fill(this.value, `${bits} of 64 bits`);
    fill(this.use, found.step ? (bits === found.distance ? "as in the recipe" : "Put it into the recipe") : "Add this step to the recipe");
    this.use.disabled = isSaved() || (found.step > 0 && bits === found.distance);
    fill(this.told, groups === null ? "" : groups ? [h("strong", null, count(groups)), ` ${groups === 1 ? "group" : "groups"}, `, h("strong", null, count(copies)), ` of ${count(pairs)} pairs repeat another (${percent(copies, pairs)})`] : "No image repeats another.");
    const turn = (by, text) => h("button", { type: "button", id: `groups${by}`, disabled: this.start + by < 0 || this.start + by >= groups, click: () => this.look({ start: this.start + by }) }, text);
    fill(this.pager, groups > PAGE ? [turn(-PAGE, "‹ Larger groups"), h("span", null, `${count(this.start + 1)} to ${count(this.start + shown.length)} of ${count(groups)}`), turn(PAGE, "Smaller groups ›")] : null);
    fill(this.list, shown.map((group) => this.section(group)));
  }

  about({ step, text, distance, pairs, limit, groups }) {
    if (step) return [foreign(text), distance !== null && pairs > limit ? `. The slider works for up to ${count(limit)} pairs, here are ${count(pairs)}: change the recipe instead.` : ""];
    if (distance === null) return need("The recipe has no step that looks for copies, and the run has no hashes of images.", this.facts.commands.hashes);
    if (groups === null) return [`To compare ${count(pairs)} pairs takes minutes, so the recipe must ask for it. `, h("button", { type: "button", id: "add-distinct", click: () => this.settle({}) }, "Add a step that keeps one of each image")];
    return `The recipe has no step that looks for copies. These are among the ${count(pairs)} pairs that it keeps.`;
  }

  section({ size, members }) {
    const head = members[0].row;
    const tagging = this.group === head;
    return h("section", { class: "copies" },
      h("div", { class: "bar" }, h("h3", null, `${count(size)} pairs, one stays`),
        size > members.length ? h("span", { class: "quiet" }, `${count(members.length)} are shown`) : null,
        tagging ? this.input.form : h("button", { type: "button", id: `tag-group-${head}`, click: () => { this.group = head; this.look({}).then(() => { this.input.draw(); this.input.box.focus(); }); } }, "Tag all …")),
      h("div", { class: "row" }, members.map((member, number) => h("div", { class: "member" },
        h("button", { type: "button", id: `copy-${member.row}`, class: `card still ${number ? "dropped" : "kept"}`, click: () => change({ pair: member.row }) },
          face(member), h("span", { class: "caption" }, foreign(member.caption || "no caption")),
          h("span", { class: "foot" }, h("span", { class: "verdict" }, number ? "repeats it" : member.kept ? "stays" : "stays here; a later step drops it"),
            number && member.bits !== null ? h("span", { class: "score" }, `${member.bits} of 64 bits differ`) : null),
          member.tags.length ? h("span", { class: "card-tags" }, member.tags.map(chip)) : null),
        number && this.found.distance !== null && !isSaved() ? h("button", { type: "button", id: `keep-${member.row}`, title: "Keep this pair of the group, and drop the others", click: () => this.keep(members, member.row) }, "Keep this one") : null))));
  }

  of(row) {
    return { group: row, recipe: active(), distance: this.distance };
  }

  async change(about, what) {
    const done = await this.retag("tag", about, what);
    if (done) await this.look({});
    return done;
  }

  /** Lets another pair of a group stay: the recipe prefers a tag, which only this pair of the group gets. */
  async keep(members, row) {
    const tag = this.found.prefer ?? "original";
    if (members.some((member) => member.tags.includes(tag)) && !await this.retag("tag", { ...this.of(row), remove: [tag] }, `no longer tagged ${tag}`)) return;
    if (!await this.retag("tag", { rows: [row], add: [tag] }, `tagged ${tag}, and so stays`)) return;
    if (this.found.prefer) await this.look({});
    else this.settle({ prefer: tag });
  }

  /** Changes settings of the recipe's step, or adds the step. */
  settle(changes) {
    const { recipe, off } = now();
    const live = recipe.select.map((_, place) => place).filter((place) => !off.includes(place));
    const place = this.found.step ? live[this.found.step - 1] : recipe.select.length;
    const select = [...recipe.select];
    select[place] = { distinct: { missing: "drop", ...(this.found.step ? settingsOf(select[place]) : {}), ...changes } };
    change({ recipe: { ...recipe, select } });
  }

  /** Arrows move between the pairs of a group, and between groups. */
  key(event) {
    const card = event.target.closest(".card");
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!card || !by) return;
    const rows = [...this.list.children].map((section) => [...section.querySelectorAll(".card")]);
    const row = rows.findIndex((cards) => cards.includes(card));
    const to = by[0] ? rows[row + by[0]]?.[0] : rows[row][rows[row].indexOf(card) + by[1]];
    event.preventDefault();
    to?.focus();
  }
}
