// The map: stored embeddings as points in a canvas. It pans, zooms, shows the pair under the pointer and takes a lasso.
//
// Points come in random order, so the first ones are a sample of all: while the map moves only as many are drawn as fit
// into a frame. Each pixel holds the number of its point, which gives its colour and answers what is under the pointer.

import { h, fill, foreign, count, percent, short, say, command, need } from "./dom.js";
import { ask, newest } from "./ask.js";
import { now, change, active, comparable } from "./state.js";
import { face } from "./grid.js";

const REST = 150; // milliseconds without movement until all points are drawn
const FRAME = 18; // milliseconds that drawing may take while the map moves
const NEAR = 8; // pixels from the pointer to a point
const NONE = 255; // the code of a point without a value
const DENSITIES = 8; // levels of opacity by the number of points in a pixel

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A colour of style.css as [red, green, blue]. */
const colour = (name) => [1, 3, 5].map((place) => parseInt(styled(name).slice(place, place + 2), 16));

/** Colours from low to high, evenly between the three of style.css. */
function shades(many) {
  const [low, middle, high] = ["--map-low", "--map-middle", "--map-high"].map(colour);
  return Array.from({ length: many }, (_, place) => {
    const at = (2 * place) / Math.max(1, many - 1);
    const [from, to, part] = at < 1 ? [low, middle, at] : [middle, high, at - 1];
    return from.map((value, channel) => Math.round(value + (to[channel] - value) * part));
  });
}

export class MapView {
  /** `compared()` returns the compared recipes, `columns()` the scores that are shown of a pair. */
  constructor(facts, compared, columns) {
    Object.assign(this, { facts, compared, columns, view: null, at: -1, only: null, lasso: null, names: [], pointers: new Map() });
    this.canvas = h("canvas", { class: "map", "aria-hidden": "true" });
    this.over = h("canvas", { class: "map over", id: "map", tabindex: 0, role: "application", "aria-describedby": "map-keys" });
    this.tip = h("div", { class: "tip", role: "status", hidden: true });
    this.bar = h("div", { class: "bar" });
    this.legend = h("div", { class: "legend" });
    this.told = h("p", { class: "told" });
    this.sheet = h("div", { class: "sheet" }, this.canvas, this.over, this.tip);
    this.box = h("div", { class: "map-box" }, this.bar, this.sheet, this.legend, this.told,
      h("p", { id: "map-keys", class: "hint" }, "Drag or press arrows to move; wheel, pinch, + and − zoom; 0 shows the whole map. Click or Enter opens a pair. Shift-drag draws a lasso."));
    this.card = newest((row) => ask("card", { row, recipe: active(), columns: this.columns() }));
    this.listen();
    new ResizeObserver(() => this.fit()).observe(this.sheet);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.table = null; this.paint(false); });
  }

  /** What the points can be coloured by: [value, text]. */
  ways() {
    const both = this.compared().length > 1 ? [["disagreement", "disagreement"]] : [];
    return [["kept", "kept or dropped"], ...both, ...[...this.facts.columns.map((column) => column.name), ...this.facts.words].map((name) => [name, name])];
  }

  /** Shows the map of the page's state; asks only for what has changed. */
  async draw(place) {
    if (!this.facts.maps.length) {
      fill(place, need("A map is laid out by embeddings, and the run stores none.", this.facts.commands.embeddings));
      return;
    }
    if (!this.box.isConnected) fill(place, this.box);
    const known = this.facts.maps.map((map) => map.name); // stored ones first
    const name = [now().map?.[0], "map_image", known.find((each) => each.startsWith("map_")), "image_embedding", known[0]].find((each) => known.includes(each));
    const by = this.ways().some(([value]) => value === now().map?.[1]) ? now().map[1] : "kept";
    const question = (this.question = {});
    this.controls(name, by);
    if (this.found?.name !== name) {
      fill(this.told, "Reading the map …");
      const [found, bytes, start] = await ask("map", { map: name });
      if (question !== this.question) return;
      if (this.found) this.show(-1);
      const column = (Kind, number) => new Kind(bytes, start + 4 * number * found.points, found.points);
      Object.assign(this, { found, x: column(Float32Array, 0), y: column(Float32Array, 1), rows: column(Uint32Array, 2), codes: new Uint8Array(found.points), names: [], key: "", budget: found.points });
      this.fit(true);
      ask("names", { map: name }).then((names) => { if (this.found === found) { this.names = names; this.drawOver(); } }, (error) => this.tell(`No names of regions: ${error.message}`));
    }
    const asked = { map: name, by, recipe: active(), compared: by === "disagreement" ? this.compared() : [] };
    if (this.key !== JSON.stringify(asked)) {
      const [coloured, bytes, start] = await ask("colours", asked);
      if (question !== this.question) return;
      Object.assign(this, { key: JSON.stringify(asked), coloured, codes: new Uint8Array(bytes, start), only: null, table: null });
    }
    this.drawLegend();
    this.tell();
    this.paint(false);
  }

  tell(problem = "") {
    const { method, points, of, explained, columns, command: map } = this.found;
    fill(this.told, `${count(points)} of ${count(of)} pairs${points < of && method === "PCA" ? ", at random" : ""}. `,
      method === "PCA" ? [`Principal components of ${columns.join(" and ")}, with ${percent(explained[0], 1)} and ${percent(explained[1] ?? 0, 1)} of the variance. To place similar pairs near each other: `, command(map)] : "Laid out by PaCMAP: similar pairs are near each other; distances between islands mean little.",
      problem && ` ${problem}`);
    this.over.setAttribute("aria-label", `Map of ${count(points)} pairs by ${method}`);
  }

  controls(name, by) {
    const pick = (id, label, entries, chosen, set) => h("select", { id, "aria-label": label, change: (event) => change({ map: set(event.target.value) }) },
      entries.map(([value, text]) => h("option", { value, ...(value === chosen ? { selected: true } : {}) }, text)));
    const press = (id, text, title, click, pressed) => h("button", { type: "button", id, title, "aria-label": text.length > 1 ? null : title, "aria-pressed": pressed, click }, text);
    fill(this.bar,
      pick("map-of", "Which map", this.facts.maps.map((map) => [map.name, `${map.name} (${map.method})`]), name, (value) => [value, by]),
      h("label", { class: "field" }, "Colour ", pick("map-by", "Colour by", this.ways(), by, (value) => [name, value])),
      press("map-in", "+", "Zoom in", () => this.zoom(1.5)), press("map-out", "−", "Zoom out", () => this.zoom(1 / 1.5)),
      press("map-all", "Whole map", "Show the whole map", () => this.fit(true)),
      press("map-loop", "Lasso", "Draw a lasso around pairs to see only them in the grid", () => { this.looping = !this.looping; this.controls(name, by); }, String(Boolean(this.looping))),
      press("map-seen", "Pairs in view", "Show the pairs of this part of the map in the grid", () =>
        this.keep([[0, 0], [this.width, 0], [this.width, this.height], [0, this.height]].map((corner) => this.inverse(...corner)))));
    this.over.classList.toggle("looping", Boolean(this.looping));
  }

  // ---- where things are ----

  /** Fits the canvases to their box; `whole` also shows the whole map. */
  fit(whole = false) {
    const [width, height, scale] = [this.sheet.clientWidth, this.sheet.clientHeight, devicePixelRatio || 1];
    if (!this.found || !width) return;
    Object.assign(this, { width, height, scale });
    for (const each of [this.canvas, this.over]) Object.assign(each, { width: Math.round(width * scale), height: Math.round(height * scale) });
    this.ids = new Uint32Array(this.canvas.width * this.canvas.height);
    this.counts = new Uint16Array(this.ids.length);
    this.image = new ImageData(this.canvas.width, this.canvas.height);
    if (whole || !this.view) {
      const [left, right, bottom, top] = this.found.ends;
      this.whole = Math.min(width / (right - left || 2), height / (top - bottom || 2)) / 1.06;
      this.view = { x: (left + right) / 2, y: (bottom + top) / 2, k: this.whole };
    }
    this.paint(false);
  }

  place(x, y) {
    return [this.width / 2 + (x - this.view.x) * this.view.k, this.height / 2 - (y - this.view.y) * this.view.k];
  }

  /** The point of the map at a place, to a hundredth of a pixel. */
  inverse(left, top) {
    const digits = clamp(Math.ceil(Math.log10(this.view.k)) + 2, 0, 12);
    return [this.view.x + (left - this.width / 2) / this.view.k, this.view.y - (top - this.height / 2) / this.view.k].map((value) => Number(value.toFixed(digits)));
  }

  move(across, down) {
    this.view.x -= across / this.view.k;
    this.view.y += down / this.view.k;
    this.redraw(true);
  }

  /** Zooms; the point of the map at `left`, `top` stays where it is. */
  zoom(by, left = this.width / 2, top = this.height / 2) {
    const k = clamp(this.view.k * by, this.whole / 4, this.whole * 20000);
    this.view.x += (left - this.width / 2) * (1 / this.view.k - 1 / k);
    this.view.y -= (top - this.height / 2) * (1 / this.view.k - 1 / k);
    this.view.k = k;
    this.redraw(true);
  }

  // ---- drawing ----

  redraw(moving) {
    clearTimeout(this.rest);
    if (moving) this.rest = setTimeout(() => this.redraw(false), REST);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.paint(moving);
    });
  }

  paint(moving) {
    if (!this.image || !this.coloured) return;
    const begun = performance.now();
    const many = this.found.points;
    this.canvas.dataset.drawn = moving ? Math.min(many, this.budget) : many;
    this.raster(Number(this.canvas.dataset.drawn));
    this.colour();
    const [gap, spent] = [begun - this.painted, performance.now() - begun];
    if (moving && gap < 500) this.budget = clamp(Math.round(this.budget * clamp(FRAME / Math.max(spent, gap - 12), 0.6, 1.1)), 20000, many);
    this.painted = begun;
    this.drawOver();
  }

  /** Writes the number of a point (from 1) and of points into each pixel. */
  raster(limit) {
    const { ids, counts, x, y, codes, view, only } = this;
    const { width, height } = this.canvas;
    const scale = view.k * this.scale;
    const [left, top] = [width / 2 - view.x * scale, height / 2 + view.y * scale];
    // Points grow as the map is zoomed, as far as those in view leave room.
    const size = Math.round(clamp((160 / Math.sqrt(this.found.points)) * (view.k / this.whole), 1, 6) * this.scale);
    const [right, bottom, half] = [width - size, height - size, size / 2];
    ids.fill(0);
    counts.fill(0);
    for (let point = 0; point < limit; point += 1) {
      const across = x[point] * scale + left - half;
      const down = top - y[point] * scale - half;
      if (!(across >= 0 && down >= 0 && across <= right && down <= bottom) || (only !== null && codes[point] !== only)) continue;
      let pixel = Math.trunc(down) * width + Math.trunc(across);
      for (let line = 0; line < size; line += 1, pixel += width) {
        for (let place = pixel; place < pixel + size; place += 1) {
          ids[place] = point + 1;
          counts[place] += 1;
        }
      }
    }
  }

  /** The colours of the legend, of all others, and at `NONE` of points without a value: [red, green, blue]. */
  palette() {
    const { by, legend, ends } = this.coloured;
    const usual = by === "kept" ? ["--dots", "--accent"].map(colour) : ends ? shades(legend.length) : legend.map((entry, place) => colour(this.own(entry.pattern) ?? `--map-${place + 1}`));
    return Object.assign([...usual, colour("--dots")], { [NONE]: colour("--rule") });
  }

  /** The colour of pairs that one recipe keeps is the recipe's own, here as in the report. */
  own(pattern = [1, 1]) {
    const keep = pattern.filter(Boolean).length;
    if (keep !== 1) return keep ? null : "--dots";
    const name = comparable(this.facts)[pattern.indexOf(1)];
    return this.facts.recipes.find((entry) => entry.name === name)?.colour.replace(/c(\d).*/, "--s$1") ?? "--accent";
  }

  /** Colours the pixels by the codes of their points, the more points the more opaque. */
  colour() {
    const { ids, counts, codes, image } = this;
    const table = (this.table ??= this.shaded());
    const level = Uint8Array.from({ length: 256 }, (_, many) => Math.min(DENSITIES - 1, Math.round(Math.log2(Math.max(1, many)) * 1.5)));
    const pixels = new Uint32Array(image.data.buffer);
    for (let place = 0; place < pixels.length; place += 1) {
      const id = ids[place];
      pixels[place] = id ? table[codes[id - 1] * DENSITIES + level[counts[place] > 255 ? 255 : counts[place]]] : 0;
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
  }

  /** The pixel of each code and level of opacity. */
  shaded() {
    const table = new Uint32Array(256 * DENSITIES);
    const faint = this.found.points > 20000 ? 110 : 190;
    this.palette().forEach(([red, green, blue], code) => {
      for (let level = 0; level < DENSITIES; level += 1) table[code * DENSITIES + level] = ((faint + ((255 - faint) * level) / (DENSITIES - 1)) << 24) | (blue << 16) | (green << 8) | red;
    });
    return table;
  }

  /** Draws names, the lasso, a ring round the point that is shown, and the middle while the map has the keyboard. */
  drawOver() {
    const context = this.over.getContext("2d");
    const { width, height, scale } = this;
    const [ink, card] = [styled("--ink"), styled("--card")];
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const loop = this.lasso ?? (now().lasso?.map === this.found.name ? now().lasso.points : []);
    const line = new Path2D();
    loop.forEach(([x, y], place) => line[place ? "lineTo" : "moveTo"](...this.place(x, y)));
    line.closePath();
    Object.assign(context, { lineWidth: 2, strokeStyle: ink, font: `600 13px ${styled("--sans")}`, textAlign: "center", textBaseline: "middle", lineJoin: "round" });
    context.stroke(line);
    if (loop.length && !this.lasso) { // what is outside fades
      line.rect(0, 0, width, height);
      Object.assign(context, { fillStyle: card, globalAlpha: 0.75 });
      context.fill(line, "evenodd");
    }
    Object.assign(context, { fillStyle: ink, globalAlpha: 1 });
    if (this.at >= 0) {
      context.beginPath();
      context.arc(...this.place(this.x[this.at], this.y[this.at]), 7, 0, 7);
      context.stroke();
    }
    const boxes = [];
    for (const region of this.names) {
      if (region.level && this.view.k < this.whole * 1.8) continue;
      const text = region.words.join(", ");
      const [left, top] = this.place(region.x, region.y);
      const half = context.measureText(text).width / 2 + 6;
      if (left - half < 0 || left + half > width || top < 12 || top > height - 12) continue;
      if (boxes.some((box) => Math.abs(box.left - left) < box.half + half && Math.abs(box.top - top) < 22)) continue;
      boxes.push({ left, top, half });
      Object.assign(context, { lineWidth: 4, strokeStyle: card });
      context.strokeText(text, left, top);
      context.fillText(text, left, top);
    }
    if (this.over.matches(":focus-visible")) context.strokeRect(width / 2 - 4, height / 2 - 4, 8, 8);
  }

  drawLegend() {
    const { legend, others, none, ends, by } = this.coloured;
    const colours = this.palette();
    const verdict = (entry, bit, verb) => {
      const names = entry.pattern.flatMap((kept, place) => (kept === bit ? [this.compared()[place].name ?? "mine"] : []));
      return names.length ? [`${names.join(" and ")} ${verb}${names.length > 1 ? "" : "s"}`] : [];
    };
    const words = (entry) => entry.text ?? [...verdict(entry, 1, "keep"), ...verdict(entry, 0, "drop")].join(", ");
    const swatch = (code) => h("i", { style: { background: `rgb(${colours[code]})` } });
    const entry = (code, text, rows) => h("button", { type: "button", id: `legend-${code}`, "aria-pressed": String(this.only === code), title: "Show only these", click: () => { this.only = this.only === code ? null : code; this.drawLegend(); this.paint(false); } },
      swatch(code), foreign(text), h("small", null, ` ${count(rows)}`));
    fill(this.legend,
      ends ? h("span", { class: "ramp" }, short(ends[0]), legend.map((_, code) => swatch(code)), short(ends[2]), h("small", null, ` half of the pairs are below ${short(ends[1])}`)) : legend.map((each, code) => (each.rows ? entry(code, words(each), each.rows) : null)),
      others ? entry(legend.length, "others", others) : null, none ? entry(NONE, `without ${by}`, none) : null);
  }

  // ---- pointer and keys ----

  /** The point nearest to a place, or -1. */
  pick(left, top, reach = NEAR) {
    const [across, down, far] = [left, top, reach].map((value) => Math.round(value * this.scale));
    let best = -1;
    let least = far * far + 1;
    for (let y = Math.max(0, down - far); y <= Math.min(this.canvas.height - 1, down + far); y += 1) {
      for (let x = Math.max(0, across - far); x <= Math.min(this.canvas.width - 1, across + far); x += 1) {
        const away = (x - across) ** 2 + (y - down) ** 2;
        const id = this.ids[y * this.canvas.width + x];
        if (id && away < least) [best, least] = [id - 1, away];
      }
    }
    return best;
  }

  /** Shows the image and caption of a point next to it; -1: of none. */
  async show(point) {
    const same = point === this.at;
    this.at = point;
    this.tip.hidden = point < 0;
    if (!same) this.drawOver();
    if (point < 0) return;
    const [left, top] = this.place(this.x[point], this.y[point]);
    this.tip.style.left = `${clamp(left + (left > this.width - 220 ? -216 : 16), 0, this.width - 200)}px`;
    this.tip.style.top = `${clamp(top - 60, 0, Math.max(0, this.height - 220))}px`;
    if (same) return;
    const found = await this.card(this.rows[point]).catch((error) => say(error.message, true));
    if (!found || point !== this.at) return;
    fill(this.tip, face(found), h("p", { class: "caption" }, found.no_caption ? h("i", null, "no caption") : foreign(found.caption)),
      h("p", { class: "quiet" }, found.kept ? "kept" : found.reason || "dropped"),
      Object.entries(found.scores).map(([name, value]) => h("p", { class: "quiet" }, foreign(name), " ", short(value))));
  }

  open() {
    if (this.at >= 0) change({ pair: this.rows[this.at] });
  }

  keep(points) {
    if (points || now().lasso) change({ lasso: points && { map: this.found.name, points } });
    else this.drawOver();
  }

  listen() {
    const { over, pointers } = this;
    const at = (event) => [event.offsetX, event.offsetY];
    let moved = 0;
    over.addEventListener("pointerdown", (event) => {
      if (event.button || !this.found) return;
      over.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, at(event));
      moved = 0;
      this.lasso = (this.looping || event.shiftKey) && pointers.size === 1 ? [this.inverse(...at(event))] : null;
    });
    over.addEventListener("pointermove", (event) => {
      if (!this.found) return;
      const [left, top] = at(event);
      const before = pointers.get(event.pointerId);
      if (!before) {
        this.show(this.pick(left, top));
        return;
      }
      const step = Math.hypot(left - before[0], top - before[1]);
      if (this.lasso && step < 4) return; // corners are at least four pixels apart
      moved += step;
      pointers.set(event.pointerId, [left, top]);
      if (this.lasso) {
        this.lasso.push(this.inverse(left, top));
        this.drawOver();
        return;
      }
      if (moved > 4) this.show(-1);
      const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
      if (other) this.zoom(Math.hypot(left - other[0], top - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1])), (left + other[0]) / 2, (top + other[1]) / 2);
      this.move((left - before[0]) / pointers.size, (top - before[1]) / pointers.size);
    });
    over.addEventListener("pointerup", (event) => {
      if (!pointers.delete(event.pointerId)) return;
      const drawn = this.lasso;
      this.lasso = null;
      if (drawn) this.keep(drawn.length > 2 ? drawn : null);
      else if (moved < 4) {
        this.show(this.pick(...at(event)));
        this.open();
      }
    });
    over.addEventListener("pointercancel", () => { pointers.clear(); this.lasso = null; });
    over.addEventListener("pointerleave", () => this.found && this.show(-1));
    over.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (!this.found) return;
      this.show(-1);
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), ...at(event));
    });
    const keys = {
      ArrowLeft: () => this.move(60, 0), ArrowRight: () => this.move(-60, 0), ArrowUp: () => this.move(0, 60), ArrowDown: () => this.move(0, -60),
      "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.fit(true), Escape: () => this.keep(null), Enter: () => this.open(),
    };
    const middle = () => { // the pair in the middle
      this.paint(false);
      this.show(this.pick(this.width / 2, this.height / 2, 40));
    };
    over.addEventListener("keydown", (event) => {
      if (!keys[event.key] || !this.found || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      keys[event.key]();
      if (event.key !== "Enter" && event.key !== "Escape") middle();
    });
    over.addEventListener("focus", () => { if (this.found && over.matches(":focus-visible")) middle(); });
    over.addEventListener("blur", () => this.found && this.show(-1));
  }
}
