// A histogram per column: the pool in grey, kept pairs in colour. A drag adds a cut; shift and drag (or a click on a bar) filters.

import { h, fill, foreign, count, say, short } from "./dom.js";
import { ask } from "./ask.js";
import { now, change, active, toggled } from "./state.js";
import { CUTS, listed, nameOf, settingsOf, without } from "./recipe.js";

const WIDTH = 260;
const HEIGHT = 72;
/** The scores, those that tell most first: one of each signal, then those with a better end. */
export function telling(facts) {
  const scores = facts.columns.filter((column) => column.score);
  const rank = (column) => (scores.find((each) => each.signal === column.signal) === column ? 0 : 2) + (column.better === "neither" ? 1 : 0) + (column.signal ? 0 : 4); // fields of the pool come last
  return [...scores].sort((one, other) => rank(one) - rank(other)).map((column) => column.name);
}

const complain = (error) => say(error.message, true);

export class ScoresPane {
  constructor(place, facts, histograms) {
    this.place = place;
    this.facts = facts;
    this.histograms = histograms; // shared with the recipe, by column
    this.charts = new Map();
    this.found = null;
    this.wordsBox = null;
    this.question = () => ({}); // the filters that the charts follow
  }

  columns() {
    const known = this.facts.columns.map((column) => column.name);
    if (now().charts) return now().charts.filter((name) => known.includes(name));
    const read = now().recipe.select.map((step) => settingsOf(step).score).filter((score) => known.includes(score));
    return [...new Set([...read, ...telling(this.facts)])].slice(0, 6);
  }

  /** The two columns of the heat map; null if there is none, or if the run lacks the columns in the URL. */
  heat() {
    const known = this.facts.columns.map((column) => column.name);
    return now().heat?.every((name) => known.includes(name)) ? now().heat : null;
  }

  pairOf(shown) {
    const some = shown.length ? shown : this.facts.columns.map((column) => column.name);
    return [some[0], some[1] ?? some[0]];
  }

  async draw() {
    const shown = this.columns();
    const lacking = shown.filter((name) => !this.histograms[name]);
    if (lacking.length) Object.assign(this.histograms, await ask("histograms", { columns: lacking }));
    this.charts.clear();
    const boxes = shown.map((name) => {
      const chart = new Chart(name, this.facts.columns.find((column) => column.name === name), this.histograms[name], () =>
        change({ charts: shown.filter((each) => each !== name) }));
      this.charts.set(name, chart);
      return chart.box;
    });
    const rest = this.facts.columns.filter((column) => !shown.includes(column.name));
    fill(
      this.place,
      h("div", { class: "charts" }, boxes.length ? boxes : h("p", { class: "quiet" }, "No scores are shown")),
      h("div", { class: "bar" },
        h("h2", { class: "unseen" }, "Scores"),
        rest.length ? h("select", { id: "more-charts", "aria-label": "Show another score", change: (event) => change({ charts: [...shown, event.target.value] }) },
          h("option", { value: "" }, "another …"), listed(rest)) : null,
        h("button", { id: "two", type: "button", "aria-pressed": String(Boolean(this.heat())),
          click: () => change({ heat: this.heat() ? null : this.pairOf(shown) }) }, "Two scores"),
        this.facts.words.length ? h("button", { id: "words", type: "button", "aria-expanded": String(Boolean(this.wordsOpen)),
          click: () => { this.wordsOpen = this.wordsOpen ? null : this.facts.words[0]; this.wordsBox = this.wordsOpen ? this.makeWords() : null; this.draw(); } }, "Words") : null,
        h("p", { class: "hint" }, "Drag to cut. Click a bar, or Shift-drag, to see its pairs.")),
      this.heat() ? (this.heatBox = h("div", { class: "heat" })) : (this.heatBox = null),
      this.wordsBox,
    );
    this.update();
  }

  update(found = this.found) {
    this.found = found;
    for (const [name, chart] of this.charts) chart.update(found?.bars?.[name], found?.cuts ?? [], found?.shown?.[name]);
    if (this.heatBox) this.drawHeat();
    if (this.wordsBox) this.drawWords();
  }

  async drawHeat() {
    const [x, y] = this.heat();
    const key = JSON.stringify([x, y, this.question()]);
    if (this.heatKey === key && this.heatBox.childElementCount) return;
    this.heatKey = key;
    const box = this.heatBox;
    const found = await ask("heat", { ...this.question(), x, y }).catch(complain);
    if (!found || this.heatKey !== key || box !== this.heatBox) return;
    const down = found.pool.length;
    const across = found.pool[0].length;
    const canvas = h("canvas", { id: "heat", width: across * 6, height: down * 6, role: "application", tabindex: 0, "aria-label": `How many pairs have which ${x} (across) and ${y} (upwards). Arrow keys move, Enter shows the pairs` });
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const most = Math.log1p(Math.max(...found.pool.flat(), 1));
    const paint = (rows, colour) => {
      context.fillStyle = style.getPropertyValue(colour);
      rows.forEach((row, at) => row.forEach((value, along) => {
        if (!value) return;
        context.globalAlpha = 0.12 + 0.88 * (Math.log1p(value) / most);
        context.fillRect(along * 6, (down - 1 - at) * 6, 6, 6);
      }));
    };
    const told = h("p", { class: "hint", role: "status" }, "Click a cell for its pairs. Grey: the pool. Coloured: kept.");
    const draw = () => {
      context.clearRect(0, 0, canvas.width, canvas.height);
      paint(found.pool, "--bar");
      paint(found.kept, "--accent");
    };
    const look = ([along, at]) => {
      this.cell = [Math.min(across - 1, Math.max(0, along)), Math.min(down - 1, Math.max(0, at))];
      [along, at] = this.cell;
      draw();
      context.globalAlpha = 1;
      context.strokeStyle = style.getPropertyValue("--ink");
      context.strokeRect(along * 6 + 0.5, (down - 1 - at) * 6 + 0.5, 5, 5);
      told.textContent = `${count(found.pool[at][along])} pairs, ${count(found.kept[at][along])} kept`;
    };
    const cell = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor(((event.clientX - box.left) / box.width) * across), down - 1 - Math.floor(((event.clientY - box.top) / box.height) * down)];
    };
    const open = () => {
      const [along, at] = this.cell;
      const others = now().ranges.filter(([name]) => name !== x && name !== y);
      change({ ranges: [...others, rangeOf(x, found.x, found.ends[0], along, across), rangeOf(y, found.y, found.ends[1], at, down)], view: "grid" });
    };
    this.cell ??= [0, 0];
    draw();
    canvas.addEventListener("pointermove", (event) => look(cell(event)));
    canvas.addEventListener("click", (event) => { look(cell(event)); open(); });
    canvas.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowDown: [0, -1], ArrowUp: [0, 1] }[event.key];
      if (by) look([this.cell[0] + by[0], this.cell[1] + by[1]]);
      else if (event.key === "Enter") open();
      else return;
      event.preventDefault();
    });
    const pick = (which, chosen) => h("select", {
      id: `heat-${which}`, "aria-label": which ? "Upwards" : "Across",
      change: (event) => change({ heat: which ? [x, event.target.value] : [event.target.value, y] }),
    }, listed(this.facts.columns, chosen));
    fill(box, h("div", { class: "bar" }, pick(1, y), h("span", null, "over"), pick(0, x)), canvas, told);
  }

  /** The box for words is created once, so that redraws keep its focus and text. */
  makeWords() {
    this.wordsPart = h("input", { id: "word-part", type: "search", placeholder: "search", "aria-label": "Search words", input: () => this.drawWords() });
    this.wordsHint = h("p", { class: "hint" });
    this.wordsList = h("ul", null);
    return h("div", { class: "words" },
      h("div", { class: "bar" },
        h("select", { id: "word-column", "aria-label": "Column of words", change: (event) => { this.wordsOpen = event.target.value; this.wordsPart.value = ""; this.drawWords(); } },
          this.facts.words.map((name) => h("option", { value: name }, name))),
        this.wordsPart, this.wordsHint),
      this.wordsList);
  }

  async drawWords() {
    const part = this.wordsPart.value;
    const column = this.wordsOpen;
    const found = await ask("words", { ...this.question(), column, part }).catch(complain);
    if (!found || this.wordsPart.value !== part || this.wordsOpen !== column) return;
    const most = Math.max(...found.words.map((word) => word.pool), 1);
    fill(this.wordsHint, `${count(found.found)} of ${count(found.different)} different words${found.found > found.words.length ? `, the ${found.words.length} most frequent are shown` : ""}`);
    fill(this.wordsList, found.words.map((word) => h("li", null,
      h("button", { type: "button", disabled: !word.whole, "aria-pressed": String(now().words.some(([name, text]) => name === column && text === word.word)), click: () => change({ words: toggled(now().words, [column, word.word]), view: "grid" }) }, foreign(word.word)),
      h("span", { class: "double" },
        h("i", { class: "pool", style: { width: `${(100 * word.pool) / most}%` } }), h("i", { class: "kept", style: { width: `${(100 * word.kept) / most}%` } })),
      h("span", { class: "number" }, `${count(word.kept)} of ${count(word.pool)}`))));
  }
}

class Chart {
  constructor(name, column, histogram, close) {
    this.name = name;
    this.histogram = histogram;
    const most = Math.max(...histogram.pool, 1);
    this.most = most;
    this.kept = h("path", { class: "kept" });
    this.shown = h("path", { class: "shown" }); // those that pass the filters
    this.marks = h("g", null);
    this.at = h("rect", { class: "at", y: 0, width: WIDTH / histogram.pool.length, height: HEIGHT });
    this.svg = h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "slider", tabindex: 0, "aria-valuemin": 1, "aria-valuemax": histogram.pool.length, keydown: (event) => this.key(event) },
      h("path", { class: "pool", d: outline(histogram.pool, most) }), this.shown, this.kept, this.marks, this.at);
    this.note = h("figcaption", { class: "ends" });
    this.box = h("figure", { class: "chart" },
      h("div", { class: "bar" }, h("h3", { title: column?.about || null }, foreign(name)),
        h("button", { type: "button", class: "plain", "aria-label": `Close ${name}`, title: "Close", click: close }, "×")),
      this.svg, this.note);
    this.drag();
    this.go(0);
  }

  /** The bar that the arrow keys reach and Enter looks at. */
  go(place) {
    const [low, high] = this.histogram.edges;
    const many = this.histogram.pool.length;
    this.bin = Math.min(many - 1, Math.max(0, place));
    this.at.setAttribute("x", (this.bin * WIDTH) / many);
    this.svg.setAttribute("aria-valuenow", this.bin + 1);
    const [from, to] = [this.bin, this.bin + 1].map((end) => short(low + (end * (high - low)) / many));
    this.svg.setAttribute("aria-valuetext", `${from} to ${to}: ${count(this.histogram.pool[this.bin])} pairs. Enter shows them`);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1e9, End: 1e9 }[event.key];
    const [low, high] = this.histogram.edges;
    if (by) this.go(this.bin + by);
    else if (event.key === "Enter") this.bar(low + ((this.bin + 0.5) * (high - low)) / this.histogram.pool.length);
    else return;
    event.preventDefault();
  }

  /** With filters, `shown` pairs pass them: then the bars have their own height, and the pool is an outline. */
  update(bars, cuts, shown) {
    const [low, high] = this.histogram.edges;
    const most = shown ? Math.max(...shown, 1) : this.most;
    this.svg.classList.toggle("narrowed", Boolean(shown));
    this.shown.setAttribute("d", shown ? outline(shown, most) : "");
    if (bars) this.kept.setAttribute("d", outline(bars, most));
    const sum = (values) => values?.reduce((total, value) => total + value, 0) ?? 0;
    this.svg.setAttribute("aria-label", `${this.name}: from ${short(low)} to ${short(high)}, ${shown ? `${count(sum(shown))} pairs pass the filters, ` : ""}${count(sum(bars))} kept pairs have it`);
    const lines = cuts.filter((cut) => cut.score === this.name).flatMap((cut) => [cut.low, cut.high]).filter(Number.isFinite);
    const x = (value) => (high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) * WIDTH : WIDTH / 2);
    const brushed = now().ranges.filter(([name]) => name === this.name);
    this.marks.replaceChildren(
      ...brushed.map(([, from, to]) => h("rect", { class: "brush", x: x(from ?? low), width: Math.max(1, x(to ?? high) - x(from ?? low)), y: 0, height: HEIGHT })),
      ...lines.map((value) => h("line", { class: "cut", x1: x(value), x2: x(value), y1: 0, y2: HEIGHT })));
    fill(this.note, h("span", null, short(low)),
      h("span", { class: "quiet" }, this.histogram.null ? `${count(this.histogram.null)} without` : ""), h("span", null, short(high)));
  }

  drag() {
    let from = null;
    const value = (event) => {
      const box = this.svg.getBoundingClientRect();
      const [low, high] = this.histogram.edges;
      return low + Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * (high - low);
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      from = { value: value(event), x: event.clientX, brush: event.shiftKey, moved: false };
      this.svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from || (!from.moved && Math.abs(event.clientX - from.x) < 4)) return;
      from.moved = true;
      this.to(from, value(event), true);
    });
    const end = (event) => {
      if (!from) return;
      const begun = from;
      from = null;
      if (begun.moved) this.to(begun, value(event), false);
      else this.bar(begun.value);
    };
    this.svg.addEventListener("pointerup", end);
    this.svg.addEventListener("pointercancel", end);
  }

  /** Filters by the clicked bar; a second click removes the filter. */
  bar(value) {
    const [low, high] = this.histogram.edges;
    const many = this.histogram.pool.length;
    const width = (high - low) / many || 1;
    const place = Math.min(many - 1, Math.floor((value - low) / width));
    const range = rangeOf(this.name, this.histogram.edges, this.histogram.ends, place, many);
    const others = now().ranges.filter(([name]) => name !== this.name);
    const same = now().ranges.some((each) => JSON.stringify(each) === JSON.stringify(range));
    change({ ranges: same ? others : [...others, range], view: "grid" });
  }

  to(begun, value, dragging) {
    const digits = (number) => Number(number.toPrecision(4));
    const [low, high] = [begun.value, value].sort((a, b) => a - b).map(digits);
    if (begun.brush) {
      change({ ranges: [...now().ranges.filter(([name]) => name !== this.name), [this.name, low, high]] }, { dragging });
      return;
    }
    // An end at the edge of the chart is open: it keeps values beyond it.
    const [left, right] = this.histogram.edges;
    const rim = (right - left) * 0.015;
    const open = [low <= left + rim, high >= right - rim];
    // Each move starts from the state before the drag, so dragging a cut away and back changes nothing.
    begun.before ??= { recipe: now().recipe, off: now().off, reason: now().reason };
    const { recipe, off } = begun.before;
    const place = recipe.select.findIndex((step, index) => CUTS.includes(nameOf(step)) && settingsOf(step).score === this.name && !off.includes(index));
    const missing = place < 0 ? "drop" : settingsOf(recipe.select[place]).missing;
    const shared = { score: this.name, ...(missing ? { missing } : {}) };
    let step = { between: { ...shared, low, high } };
    if (open[0] && open[1]) step = null;
    else if (open[1]) step = { at_least: { ...shared, value: low } };
    else if (open[0]) step = { at_most: { ...shared, value: high } };
    const select = [...recipe.select];
    if (step) select.splice(place < 0 ? select.length : place, 1, step);
    change({ ...begun.before, ...(place < 0 || step ? { recipe: { ...recipe, select } } : without(recipe, off, place)) }, { dragging });
  }
}

/** The range of one of `many` bars; the outermost bars reach to the column's minimum and maximum. */
function rangeOf(name, [low, high], [bottom, top], place, many) {
  const width = (high - low) / many || 1;
  return [name, place ? low + place * width : Math.min(low, bottom ?? low), place < many - 1 ? low + (place + 1) * width : Math.max(high, top ?? high)];
}

function outline(bars, most) {
  const width = WIDTH / bars.length;
  let path = `M0 ${HEIGHT}`;
  bars.forEach((value, place) => {
    // A bar with rows is always visible.
    const top = HEIGHT - (value ? Math.max(1, (value / most) * (HEIGHT - 2)) : 0);
    path += `L${(place * width).toFixed(2)} ${top.toFixed(2)}L${((place + 1) * width).toFixed(2)} ${top.toFixed(2)}`;
  });
  return `${path}L${WIDTH} ${HEIGHT}Z`;
}

