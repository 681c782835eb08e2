// The other views: disagreements of recipes, the map, copies, rejects.

import { h, fill, foreign, count, percent, say } from "./dom.js";
import { ask } from "./ask.js";
import { now, change, active, comparable, regionOf } from "./state.js";
import { face } from "./grid.js";

/** Recipes side by side: a bar per combination of their verdicts, as in an UpSet plot. */
export async function disagree(place, facts, compared) {
  const state = now();
  const chosen = comparable(facts);
  const opened = regionOf(facts);
  const names = ["@", ...facts.recipes.map((entry) => entry.name)];
  const unique = [...new Set(names)];
  const picks = h("fieldset", { class: "picks" }, h("legend", null, `Which recipes (2 to ${facts.compared})`),
    unique.map((name) => h("label", null,
      h("input", { type: "checkbox", id: `pick-${name}`, checked: chosen.includes(name), disabled: !chosen.includes(name) && chosen.length >= facts.compared,
        change: (event) => change({ compared: event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name), region: [] }) }),
      name === "@" ? "the recipe on the left" : foreign(name))));
  const lacking = state.compared.filter((name) => !chosen.includes(name));
  const left = lacking.length ? h("p", { class: "told left-out" }, "Left out, since there is no such recipe here or they are too many: ", lacking.map((name, number) => [number ? ", " : "", foreign(name)]), ".") : null;
  if (chosen.length < 2) {
    fill(place, picks, left, h("p", { class: "quiet" }, "Choose two or more to see where they agree and where they do not."));
    return;
  }
  const found = await ask("regions", { compared: compared() });
  if (now() !== state && JSON.stringify(now().compared) !== JSON.stringify(state.compared)) return;
  const most = Math.max(...found.regions.map((region) => region.rows), 1);
  const label = (name) => (name === "@" ? "on the left" : name);
  const same = (pattern) => JSON.stringify(pattern) === JSON.stringify(opened);
  fill(place, picks, left, h("div", { class: "upset", role: "group", "aria-label": "How many pairs each combination of recipes keeps" },
    h("div", { class: "sets" },
      chosen.map((name, number) => h("span", null, foreign(label(name)), h("small", null, ` ${count(found.sets[number])}`))), h("span", null, "pairs")),
    found.regions.map((region) => {
      const kept = chosen.filter((_, number) => region.pattern[number]).map(label);
      const dropped = chosen.filter((_, number) => !region.pattern[number]).map(label);
      const said = kept.length ? (dropped.length ? `${kept.join(" and ")} keep, ${dropped.join(" and ")} drop` : "all keep") : "all drop";
      return h("button", {
        type: "button", class: "region", "aria-pressed": String(same(region.pattern)), title: said, "aria-label": `${count(region.rows)} pairs: ${said}`,
        click: () => change({ region: same(region.pattern) ? [] : region.pattern }),
      },
      region.pattern.map((bit) => h("span", { class: bit ? "dot on" : "dot" })),
      h("span", { class: "bar-cell" }, h("i", { style: { width: `${(100 * region.rows) / most}%` } }), h("span", null, `${count(region.rows)} · ${percent(region.rows, facts.rows)}`)));
    })),
  h("p", { class: "told" }, opened.length ? "The images below are of the chosen bar." : "A bar opens its images. ● keeps, ○ drops."));
}

/** Why pairs are dropped: a bar per reason of the recipe and per status. */
export function rejects(place, facts, found) {
  const most = Math.max(...(found?.reasons ?? []).map((reason) => reason.rows), ...Object.values(facts.statuses), 1);
  const row = (text, rows, pressed, click) => h("button", { type: "button", class: "reason", disabled: !rows, "aria-pressed": String(pressed), click },
    h("span", { class: "text" }, foreign(text)), h("span", { class: "bar-cell" }, h("i", { style: { width: `${(100 * rows) / most}%` } }), h("span", null, `${count(rows)} · ${percent(rows, facts.rows)}`)));
  const state = now();
  const broken = Object.entries(facts.statuses).filter(([status]) => status !== "ok");
  fill(place,
    h("section", null, h("h3", null, "Dropped by the recipe"),
      found?.reasons.length ? found.reasons.map((reason) => row(reason.text, reason.rows, state.reason === reason.code, () => change({ reason: state.reason === reason.code ? 0 : reason.code, show: state.reason === reason.code ? "dropped" : "all", words: [] })))
        : h("p", { class: "quiet" }, "The recipe drops nothing.")),
    broken.length ? h("section", null, h("h3", null, "Damaged or incomplete pairs"),
      broken.map(([status, rows]) => {
        const on = state.words.some(([name, word]) => name === "status" && word === status);
        return row(status.replaceAll("_", " "), rows, on, () => change({ words: on ? [] : [["status", status]], reason: 0, show: on ? "dropped" : "all" }));
      })) : null);
}

/** Repeated images: the kept pair next to its copies. */
export async function copies(place) {
  fill(place, h("p", { class: "quiet" }, "Looking for copies …"));
  const found = await ask("copies", { recipe: active() });
  if (!found.shown.length) {
    fill(place, h("p", { class: "quiet" }, found.step || found.usual ? "No image repeats another." : "The recipe has no step that looks for repeats, and the run has no hashes: score it with image_hash."));
    return;
  }
  fill(place,
    h("p", { class: "told" }, `${count(found.groups)} ${found.groups === 1 ? "group" : "groups"} of repeated images${found.groups > found.shown.length ? `, the largest ${count(found.shown.length)} are shown` : ""}. `,
      found.usual ? ["The recipe on the left has no step that looks for them: this is what ", h("code", null, "distinct"), " would drop."] : foreign(found.step)),
    found.shown.map((group) => h("section", { class: "copies" },
      h("h3", null, `${count(group.size)} pairs, one stays`),
      h("div", { class: "row" }, group.members.map((member, number) => h("button", { type: "button", class: `card still ${number ? "dropped" : "kept"}`, click: () => change({ pair: member.row }) },
        face(member), h("span", { class: "caption" }, foreign(member.caption || "no caption")),
        h("span", { class: "foot" }, h("span", { class: "verdict" }, number ? "repeats it" : "stays"),
          number && member.bits !== null ? h("span", { class: "score" }, `${member.bits} of 64 bits differ`) : null)))))));
}

/** A map of stored embeddings; a lasso is a filter. */
export class MapView {
  constructor(place, facts) {
    this.place = place;
    this.facts = facts;
    this.embedding = facts.embeddings.find((name) => name.startsWith("image_embedding")) ?? facts.embeddings[0];
  }

  async draw() {
    if (!this.embedding) {
      fill(this.place, h("p", { class: "quiet" }, "The run stores no embeddings: score it with --keep embeddings."));
      return;
    }
    const question = (this.question = {});
    const found = await ask("map", { embedding: this.embedding, recipe: active() });
    if (question !== this.question) return;
    this.found = found;
    if (!this.canvas?.isConnected) {
      this.canvas = h("canvas", { class: "map", role: "img" });
      this.over = h("canvas", { class: "map over", tabindex: 0, "aria-label": "Draw a loop round pairs to see them" });
      this.told = h("p", { class: "told" });
      fill(this.place,
        h("div", { class: "bar" },
          this.facts.embeddings.length > 1 ? h("select", { id: "embedding", "aria-label": "Which embeddings", change: (event) => { this.embedding = event.target.value; this.draw(); } },
            this.facts.embeddings.map((name) => h("option", { value: name, ...(name === this.embedding ? { selected: true } : {}) }, name))) : null,
          h("p", { class: "hint" }, "Draw a loop round pairs to see them.")),
        h("div", { class: "sheet" }, this.canvas, this.over), this.told);
      this.lasso();
    }
    this.canvas.setAttribute("aria-label", `${count(found.row.length)} pairs, by the two directions in which their embeddings differ most`);
    fill(this.told, `${count(found.row.length)} pairs${found.row.length < found.of ? ` at random of ${count(found.of)}` : ""}, along the two directions in which ${this.embedding} differs most: ${percent(found.explained[0], 1)} and ${percent(found.explained[1], 1)} of all variance. Grey: dropped. Coloured: kept.`);
    this.paint();
  }

  paint() {
    const { canvas, over, found } = this;
    const side = Math.min(canvas.parentElement.clientWidth, 900);
    const scale = devicePixelRatio || 1;
    for (const each of [canvas, over]) {
      each.width = side * scale;
      each.height = Math.round(side * 0.62) * scale;
    }
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const dot = Math.max(1.2, Math.min(5, 160 / Math.sqrt(found.row.length))) * scale;
    const x = (value) => ((value + 1.04) / 2.08) * canvas.width;
    const y = (value) => (1 - (value + 1.04) / 2.08) * canvas.height;
    for (const [kept, colour] of [[0, "--dots"], [1, "--accent"]]) {
      context.fillStyle = style.getPropertyValue(colour);
      context.globalAlpha = 0.75;
      found.row.forEach((_, place) => {
        if (found.kept[place] === kept) context.fillRect(x(found.x[place]) - dot / 2, y(found.y[place]) - dot / 2, dot, dot);
      });
    }
    this.loop(now().lasso?.embedding === this.embedding ? now().lasso.points : []);
  }

  loop(points) {
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (points.length < 2) return;
    context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
    context.lineWidth = 2 * (devicePixelRatio || 1);
    context.beginPath();
    points.forEach(([x, y], place) => context[place ? "lineTo" : "moveTo"](((x + 1.04) / 2.08) * this.over.width, (1 - (y + 1.04) / 2.08) * this.over.height));
    context.closePath();
    context.stroke();
  }

  lasso() {
    let points = null;
    const at = (event) => {
      const box = this.over.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * 2.08 - 1.04, (1 - (event.clientY - box.top) / box.height) * 2.08 - 1.04].map((value) => Number(value.toFixed(3)));
    };
    this.over.addEventListener("pointerdown", (event) => {
      points = [at(event)];
      this.over.setPointerCapture(event.pointerId);
    });
    this.over.addEventListener("pointermove", (event) => {
      if (!points) return;
      const point = at(event);
      const last = points.at(-1);
      if (Math.hypot(point[0] - last[0], point[1] - last[1]) > 0.01) points.push(point);
      this.loop(points);
    });
    this.over.addEventListener("pointerup", () => {
      const drawn = points;
      points = null;
      change({ lasso: drawn && drawn.length > 2 ? { embedding: this.embedding, points: drawn } : null });
    });
  }
}
