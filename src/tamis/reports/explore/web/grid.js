// Pairs as cards. Only visible cards are in the page.

import { h, fill, refill, foreign, brief, count, short, say, need } from "./dom.js";
import { ask, imageUrl, send } from "./ask.js";
import { now, change, active, address, open, regionOf, toggled } from "./state.js";
import { choices } from "./answers.js";
import { chip } from "./tags.js";

const CARD = { small: 112, medium: 180, large: 320 }; // the least width of a card
const TEXT = { small: 36, medium: 92, large: 112 }; // the height of a card below its image
const GAP = 12;
const SPLIT = 28; // between kept and dropped pairs
const PAGE = 60;
const BAR = 60; // height of the bar at the bottom of the window
const [LEAST, MOST] = [250, 3000]; // milliseconds of a pause in typing before captions are searched

export class Grid {
  /** `about()` returns the arguments of a request, except the position. `name` begins the ids of the cards. */
  constructor(about, name = "card") {
    this.about = about;
    this.name = name;
    this.scroller = null; // the element that scrolls the cards; null: the window
    this.pages = new Map();
    this.total = 0;
    this.listed = 0;
    this.places = 0; // on the page: those of the listed pairs, and the empty ones next to a cut
    this.sides = null; // the numbers of kept and dropped pairs, if they are next to each other
    this.cursor = 0;
    this.chosen = new Set(); // rows that are selected
    this.every = false; // all rows of the view are selected, listed or not
    this.start = { place: 0, chosen: [] }; // of a range
    this.selected = () => {}; // is called when the selection changes
    this.told = h("p", { class: "told", role: "status" }, "Reading …");
    this.heads = h("div", { class: "sides", hidden: true });
    this.inside = h("div", { class: "inside", role: "presentation" });
    this.box = h("div", { role: "listbox", tabindex: 0, "aria-multiselectable": "true", "aria-label": "Pairs: j, k and arrows move, Enter opens, Space selects, t tags, g and b tag good and bad", keydown: (event) => this.key(event) }, this.inside);
    this.shown = new Map();
    new ResizeObserver(() => this.lay()).observe(this.box);
    window.addEventListener("scroll", () => this.lay(), { passive: true, capture: true }); // also of `scroller`
  }

  /** Loads the rows again; the old cards stay, in grey, until the answer comes. `same`: the selection stays. */
  async load(same = false) {
    const question = (this.question = {});
    const about = JSON.stringify({ ...this.about(), columns: [] });
    if (about !== this.shownFor && !same) this.clear(); // else pairs that are no longer here would be tagged
    this.shownFor = about;
    this.box.setAttribute("aria-busy", "true");
    if (now().near) fill(this.told, h("span", { class: "busy" }), "Looking for images ", like(now().near), " …");
    const found = await ask("rows", { ...this.about(), start: 0, count: PAGE }).catch((error) => ({ problem: error.message }));
    if (question !== this.question) return; // a newer question is on its way
    this.box.removeAttribute("aria-busy");
    if (found.problem) {
      fill(this.told, found.problem, this.listed ? ". The pairs of before are shown." : "");
      return;
    }
    this.pages.clear();
    this.pages.set(0, found.cards);
    this.total = found.total;
    this.listed = found.listed;
    this.sides = found.sides?.counts.every(Boolean) ? found.sides.counts : null;
    fill(this.told, `${count(found.total)} ${found.drawn ? "drawn " : ""}${found.total === 1 ? "pair" : "pairs"}`,
      found.total > found.listed ? `, the first ${count(found.listed)} of this order can be scrolled through` : "");
    fill(this.heads, headings(found.sides?.cut));
    this.lay(true);
    this.move(0);
  }

  async page(number) {
    if (this.pages.has(number) || this.box.ariaBusy) return;
    const question = this.question;
    this.pages.set(number, null);
    try {
      const found = await ask("rows", { ...this.about(), start: number * PAGE, count: PAGE });
      if (question !== this.question) return;
      this.pages.set(number, found.cards);
      this.lay(true);
    } catch (error) {
      this.pages.delete(number);
      say(error.message, true);
    }
  }

  at(place) {
    const index = this.index(place);
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  }

  /** The number in the list of the pair at a place, -1 for an empty place. With two sides, they take turns in the list. */
  index(place) {
    if (!this.sides) return place < this.listed ? place : -1;
    const half = this.across / 2;
    const column = place % this.across;
    const side = column < half ? 0 : 1;
    const nth = Math.floor(place / this.across) * half + column - side * half;
    const both = Math.min(...this.sides);
    return nth >= this.sides[side] ? -1 : nth < both ? 2 * nth + side : both + nth;
  }

  lay(anew = false) {
    const width = this.box.clientWidth;
    if (!width) return;
    const size = this.scroller && now().size === "small" ? "medium" : now().size; // columns show reasons, small cards none
    const least = width < 480 ? CARD[size] * 0.8 : CARD[size];
    const split = this.sides ? SPLIT : 0;
    let across = Math.max(1, Math.floor((width - split + GAP) / (least + GAP)));
    if (this.sides) across = Math.max(2, across - (across % 2));
    const side = (width - split - GAP * (across - 1)) / across;
    const tall = Math.round(side * 0.82) + TEXT[size];
    this.across = across;
    this.tall = tall + GAP;
    this.places = this.sides ? Math.ceil(Math.max(...this.sides) / (across / 2)) * across : this.listed;
    this.heads.hidden = !this.sides;
    this.box.className = `grid ${size}${this.sides ? " split" : ""}`;
    this.inside.style.height = `${Math.max(0, Math.ceil(this.places / across) * this.tall - GAP)}px`;
    const top = this.box.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(-top / this.tall) - 1) * across;
    const last = Math.min(this.places, (Math.ceil((innerHeight - top) / this.tall) + 1) * across);
    if (anew) {
      for (const card of this.shown.values()) card.remove();
      this.shown.clear();
    }
    for (const [place, card] of this.shown) {
      if (place < first || place >= last) {
        card.remove();
        this.shown.delete(place);
      }
    }
    for (let place = first; place < last; place += 1) {
      const index = this.index(place);
      if (index < 0) continue;
      let card = this.shown.get(place);
      if (!card) {
        const found = this.at(place);
        if (!found) {
          this.page(Math.floor(index / PAGE));
          continue;
        }
        card = this.card(found, place);
        this.shown.set(place, card);
        this.inside.append(card);
      }
      const column = place % across;
      card.style.width = `${side}px`;
      card.style.height = `${tall}px`;
      card.style.transform = `translate(${column * (side + GAP) + (column < across / 2 ? 0 : split)}px, ${Math.floor(place / across) * this.tall}px)`;
      card.classList.toggle("here", place === this.cursor);
      const on = this.every || this.chosen.has(Number(card.dataset.row));
      card.classList.toggle("chosen", on);
      card.setAttribute("aria-selected", String(on || (!this.size && place === this.cursor)));
    }
    // The focus stays on the box; this tells a screen reader which card is selected.
    const here = this.shown.get(this.cursor);
    if (here) this.box.setAttribute("aria-activedescendant", here.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  key(event) {
    if (event.target !== this.box || event.altKey) return;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.across, ArrowDown: this.across, Home: -this.places, End: this.places }[event.key];
    const held = event.ctrlKey || event.metaKey;
    const act = held ? { a: () => this.all() }[event.key]
      : by !== undefined ? () => this.move(by, event.shiftKey)
        : { " ": () => this.select(this.cursor), Escape: () => this.clear() }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  get size() {
    return this.every ? this.total : this.chosen.size;
  }

  /** What keys and the tag box change: the selected pairs, else the framed one. */
  target() {
    if (this.every) return JSON.parse(this.shownFor); // not a question that has no answer yet
    const rows = this.chosen.size ? [...this.chosen] : [this.at(this.cursor)?.row].filter((row) => row !== undefined);
    return rows.length ? { rows } : null;
  }

  /** Selects one more pair, or one less. */
  select(place) {
    const row = this.at(place)?.row;
    if (row === undefined) return;
    if (this.every) this.chosen.clear();
    this.every = false;
    if (!this.chosen.delete(row)) this.chosen.add(row);
    this.begin(place);
  }

  /** Selects all pairs from the start of the range to a place, on one side if both are; asks for those not loaded. */
  async extend(place) {
    const { place: start, chosen } = this.start;
    const side = (each) => !this.sides || each % this.across < this.across / 2;
    const first = Math.min(start, place);
    const places = Array.from({ length: Math.abs(start - place) + 1 }, (_, at) => first + at);
    const indices = places.filter((each) => side(start) !== side(place) || side(each) === side(place)).map((each) => this.index(each)).filter((index) => index >= 0);
    let rows = indices.map((index) => this.pages.get(Math.floor(index / PAGE))?.[index % PAGE]?.row);
    this.cursor = place;
    const asked = (this.asked = {});
    if (rows.includes(undefined)) {
      const least = Math.min(...indices);
      const found = await ask("rows", { ...this.about(), start: least, count: Math.max(...indices) - least + 1, numbers: true }).catch((error) => say(error.message, true));
      rows = found ? indices.map((index) => found.rows[index - least]) : [];
    }
    if (asked !== this.asked) return; // the range has another end now
    this.every = false;
    this.chosen = new Set([...chosen, ...rows]);
    this.lay();
    this.selected();
  }

  all() {
    this.box.focus({ preventScroll: true });
    this.every = this.total > 0 && !this.box.ariaBusy;
    this.begin(this.cursor);
  }

  clear() {
    this.every = false;
    this.chosen.clear();
    this.begin(this.cursor);
  }

  /** Frames a place, where a range would start. */
  begin(place) {
    this.asked = null;
    this.cursor = place;
    this.start = { place, chosen: [...this.chosen] };
    this.lay();
    this.selected();
  }

  card(found, place) {
    const scores = Object.entries(found.scores);
    return h("button", {
      type: "button", class: `card ${found.kept ? "kept" : "dropped"}`, role: "option", tabindex: -1, id: `${this.name}-${place}`, "aria-setsize": this.listed, "aria-posinset": this.index(place) + 1, "data-row": found.row, "aria-label": called(found),
      click: (event) => {
        this.box.focus({ preventScroll: true });
        if (event.shiftKey) this.extend(place);
        else if (event.ctrlKey || event.metaKey || event.target.className === "tick") this.select(place);
        else {
          this.begin(place);
          change({ pair: event.target.closest(".original") ? found.repeats : found.row });
        }
      },
    },
    face(found),
    h("span", { class: "caption", "aria-hidden": "true" }, found.no_caption ? h("i", null, "no caption") : marked(found.caption), found.cut_off ? " …" : ""),
    h("span", { class: "foot" },
      h("span", { class: "verdict", title: found.reason || "kept" }, found.kept ? "kept" : `dropped${found.reason ? `: ${found.reason.replace(/^Step \d+: /, "")}` : ""}`),
      scores.slice(0, 2).map(([name, value]) => h("span", { class: "score" }, foreign(name), " ", short(value)))),
    found.repeats == null ? null : h("span", { class: "original", "aria-hidden": "true", title: `It repeats pair ${count(found.repeats)}: open that one (o)` }, face({ row: found.repeats, status: "ok" })),
    h("span", { class: "tick", "aria-hidden": "true" }, "✓"),
    found.tags.length ? h("span", { class: "card-tags" }, found.tags.slice(0, 3).map(chip), found.tags.length > 3 ? h("span", { class: "label" }, `+${found.tags.length - 3}`) : null) : null);
  }

  /** Moves the cursor and scrolls to its card; with `range` all pairs up to it are selected. */
  move(by, range = false) {
    if (!this.places) return this.selected();
    let to = Math.min(this.places - 1, Math.max(0, this.cursor + by));
    while (to < this.places && this.index(to) < 0) to += by < 0 ? -1 : 1; // over the empty places next to a cut
    while (this.index(to) < 0) to -= 1;
    if (range) this.extend(to);
    else this.begin(to);
    if (!by) return undefined;
    const top = this.box.getBoundingClientRect().top + Math.floor(this.cursor / this.across) * this.tall;
    const view = this.scroller?.getBoundingClientRect() ?? { top: 60, bottom: innerHeight - BAR };
    if (top < view.top) (this.scroller ?? window).scrollBy(0, top - view.top - (this.scroller ? 0 : 60));
    else if (top + this.tall > view.bottom) (this.scroller ?? window).scrollBy(0, top + this.tall - view.bottom + (this.scroller ? 0 : 20));
    this.lay();
    const found = this.at(this.cursor);
    if (found && now().pair !== null) change({ pair: found.row }, { replace: true });
  }

  /** Moves the focus, and the cursor if the card is there, to a pair that a link opens. */
  find(row) {
    for (const [place, card] of this.shown) if (card.dataset.row === String(row)) this.cursor = place;
    this.box.focus({ preventScroll: true });
    this.lay();
  }

  here() {
    return now().pair ?? this.at(this.cursor)?.row ?? null;
  }

  /** Shows changed tags: { row: tags }. */
  tagged(rows) {
    for (const cards of this.pages.values()) for (const card of cards ?? []) card.tags = rows[card.row] ?? card.tags;
    this.lay(true);
  }
}

/** What is on the two sides of a cut: [score, lowest, highest]. */
function headings(cut) {
  const [score, ...ends] = cut ?? [];
  const limits = ends.filter((end) => end !== null);
  return ["kept", "dropped"].map((kind) => {
    const way = limits.length === 2 ? { kept: "inside", dropped: "outside" }[kind] : (ends[0] === null) === (kind === "dropped") ? "above" : "below";
    return h("p", { class: kind }, h("strong", null, kind), cut ? [": ", foreign(score), ` just ${way} ${limits.map(short).join(" to ")}`] : null);
  });
}

/** All texts that captions must contain, with the one that is being typed. */
const searched = (state) => [...state.captions, state.caption].filter((text) => text.trim());

/** A caption, with the parts that were searched for marked. */
function marked(caption) {
  const parts = searched(now()).flatMap(choices).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!parts.length) return foreign(caption);
  const box = foreign("");
  caption.split(new RegExp(`(${parts.join("|")})`, "iu")).forEach((piece, place) => {
    const nodes = foreign(piece).childNodes;
    box.append(...(place % 2 ? [h("mark", null, ...nodes)] : nodes));
  });
  return box;
}

/** The name of a card for screen readers. */
export const called = (found) => [brief(found.caption), found.kept ? "kept" : "dropped", found.reason, ...found.tags ?? []].filter(Boolean).join(", ");

/** The image of a card, or the reason why there is none. */
export function face(found) {
  const frame = h("span", { class: "face" });
  const image = h("img", { src: imageUrl("small", found.row), alt: brief(found.caption), loading: "lazy", decoding: "async",
    error: () => fill(frame, h("i", null, found.status === "ok" ? "no image" : found.status.replaceAll("_", " "))) });
  frame.append(image);
  return frame;
}

const like = (near) => (near.text ? ["like ", foreign(near.text)] : near.image ? ["like ", foreign(near.name ?? "your image")] : `like pair ${count(near.row)}`);

/** A search by words or by an image from this machine, in stored embeddings. */
function search(facts) {
  const nearest = (near) => change(near ? { near, sort: "row", view: "grid" } : { near: null, sort: "random" });
  const file = h("input", { type: "file", id: "near-file", accept: "image/*", hidden: true, change: async (event) => {
    const chosen = event.target.files[0];
    event.target.value = "";
    if (!chosen) return;
    if (chosen.size > facts.largest_image) {
      say(`The image has ${count(chosen.size)} bytes, at most ${count(facts.largest_image)} are taken: make it smaller`, true);
      return;
    }
    say("Looking at the image …");
    try {
      nearest({ ...(await send(chosen)), name: chosen.name });
    } catch (error) {
      say(error.message, true);
    }
  } });
  return h("form", { class: "near", submit: (event) => {
    event.preventDefault();
    const text = event.target.elements[0].value.trim();
    nearest(text ? { text } : null);
  } }, h("input", { id: "near", type: "search", placeholder: "like these words", "aria-label": "Images like these words" }),
  h("button", { type: "button", id: "near-image", title: "Find images like a file of yours; the file is not stored", click: () => file.click() }, "by image …"), file);
}

/** The controls above the grid. Their text boxes are created once, so that redraws keep focus and text. */
export class Controls {
  constructor(facts) {
    this.facts = facts;
    this.choices = h("span", { class: "choices" });
    this.caption = h("input", { id: "caption", type: "search", placeholder: "in the caption", title: "dog | cat finds either", "aria-label": "Part of the caption; Enter keeps it as a filter, | separates alternatives",
      input: () => { clearTimeout(this.timer); this.timer = setTimeout(() => this.type(), this.pause); },
      change: () => this.type(),
      keydown: (event) => { if (event.key === "Enter") this.keep(); } });
    this.pause = LEAST; // between the last key and the search: as long as the last search took
    this.sign = h("span", { class: "busy", role: "status", "aria-label": "Searching in captions", hidden: true });
    this.near = facts.searchable ? search(facts) : facts.static ? null : h("details", { class: "near-needs" }, h("summary", null, "Search by words or by an image"), need("It compares embeddings, and the run stores none.", facts.commands.embeddings));
    this.filters = h("div", { class: "bar" });
    this.box = h("div", { class: "controls" }, h("div", { class: "bar" }, this.choices, this.caption, this.sign, this.near, facts.static ? null : savedViews()), this.filters);
  }

  /** Searches for what was typed so far. */
  type() {
    clearTimeout(this.timer);
    if (this.caption.value !== now().caption) change({ caption: this.caption.value }, { by: "caption" });
  }

  /** Makes a filter of what was typed, so that the box is free for another one. */
  keep() {
    clearTimeout(this.timer);
    const text = this.caption.value.trim();
    this.caption.value = "";
    if (text) change({ captions: now().captions.includes(text) ? now().captions : [...now().captions, text], caption: "" });
  }

  /** Shows that a search works, until its answer or that of a newer one is there. */
  async wait(answers) {
    const begun = performance.now();
    const waiting = (this.waiting = {});
    this.sign.hidden = false;
    await Promise.allSettled(answers);
    this.pause = Math.min(MOST, Math.max(LEAST, performance.now() - begun)); // a large run is asked less often
    if (waiting === this.waiting) this.sign.hidden = true;
  }

  draw(found) {
    const state = now();
    const words = (box, text) => { if (box !== document.activeElement) box.value = text; };
    words(this.caption, state.caption);
    if (this.near?.elements) words(this.near.elements[0], state.near?.text ?? "");
    refill(this.choices, this.show(state), this.order(state), h("label", { class: "field" }, "Images ",
      h("select", { id: "size", change: (event) => change({ size: event.target.value }) }, ["small", "medium", "large"].map((size) => option(size, size, state.size)))));
    fill(this.filters, this.filtered(state, found));
  }

  show(state) {
    return h("label", { class: "field" }, "Show ", h("select", { id: "show", change: (event) => change({ show: event.target.value, reason: 0 }) },
      option("all", "all pairs", state.show), option("kept", "kept", state.show), option("dropped", "dropped", state.show)));
  }

  order(state) {
    const sort = state.sort === "score" ? `${state.descending ? "-" : "+"}${state.column}` : state.sort === "extremes" ? `*${state.column}` : state.sort;
    return h("label", { class: "field" }, "Order ", h("select", {
      id: "sort",
      change: (event) => {
        const value = event.target.value;
        if ("+-*".includes(value[0])) change({ sort: value[0] === "*" ? "extremes" : "score", column: value.slice(1), descending: value[0] === "-" });
        else change({ sort: value, column: "", descending: true });
      },
    },
    option("random", "at random", sort), option("cut", "kept | dropped, at the cut", sort), option("row", state.near || state.lasso ? "nearest first" : "as in the pool", sort),
    this.facts.columns.map((column) => h("optgroup", { label: column.score ? column.name : `other column: ${column.name}` },
      option(`-${column.name}`, `${column.name}, highest first`, sort), option(`+${column.name}`, `${column.name}, lowest first`, sort),
      option(`*${column.name}`, `${column.name}, both ends`, sort)))));
  }

  filtered(state, found) {
    const filters = [
      ...state.captions.map((text) => [["caption has ", choices(text).map((part, place) => [place ? " or " : "", foreign(part)])], () => change({ captions: toggled(state.captions, text) })]),
      ...state.ranges.map((range) => [[foreign(range[0]), ` ${short(range[1])} to ${short(range[2])}`], () => change({ ranges: toggled(state.ranges, range) })]),
      ...state.words.map((word, place) => [[state.words.findIndex(([name]) => name === word[0]) < place ? "or " : "", foreign(word[0]), " ", foreign(word[1])], () => change({ words: toggled(state.words, word) })]),
      ...state.tags.map((tag) => [[tag[1] ? "tagged " : "not tagged ", foreign(tag[0])], () => change({ tags: toggled(state.tags, tag) })]),
      ...(state.reason ? [[[foreign(found?.reasons.find((each) => each.code === state.reason)?.text ?? "one reason")], () => change({ reason: 0 })]] : []),
      ...(regionOf(this.facts).length ? [["one part of the comparison", () => change({ region: [] })]] : []),
      ...(state.lasso ? [["the lasso", () => change({ lasso: null })]] : []),
      ...(state.finding ? [[`finding: ${state.finding.replace("status-", "").replaceAll("_", " ")}`, () => change({ finding: null })]] : []),
      ...(state.near ? [[like(state.near), () => change({ near: null, sort: "random" })]] : []),
    ];
    const all = () => change({ captions: [], ranges: [], words: [], tags: [], reason: 0, region: [], lasso: null, finding: null, ...(state.near ? { near: null, sort: "random" } : {}) });
    return filters.length ? [h("ul", { class: "filters" }, filters.map(([text, drop]) => h("li", null, h("button", { type: "button", title: "Take this filter away", click: drop }, text, " ×")))),
      filters.length > 1 ? h("button", { type: "button", id: "no-filters", class: "plain", click: all }, "Take all away") : null] : null;
  }
}

/** The views that were saved by name in the run: a list, and a box to save this one. */
function savedViews() {
  const complain = (error) => say(error.message, true);
  const list = h("ul", { class: "views" });
  const show = (views) => fill(list, Object.entries(views).map(([name, saved]) => h("li", null,
    h("button", { type: "button", click: () => { box.open = false; open(saved); } }, foreign(name)),
    h("button", { type: "button", class: "plain", "aria-label": `Delete the view ${name}`, title: "Delete", click: () => ask("delete_view", { name }).then(show, complain) }, "×"))));
  const name = h("input", { id: "view-name", maxlength: 60, placeholder: "name of this view", "aria-label": "Name of this view", input: () => { again = false; save.textContent = "Save"; } });
  const save = h("button", { id: "save-view" }, "Save");
  let again = false; // the name is taken: a second press replaces that view
  const submit = async (event) => {
    event.preventDefault();
    const saved = address({ ...now(), pair: null }).split("#")[1];
    try {
      show(await ask("save_view", { name: name.value, address: saved, replace: again }));
      name.value = "";
      again = false;
    } catch (error) {
      again = /already/.test(error.message);
      complain(error);
    }
    save.textContent = again ? "Replace it" : "Save";
  };
  const box = h("details", { class: "saved", toggle: () => { if (box.open) ask("views").then(show, complain); } }, h("summary", null, "Saved views"), list, h("form", { class: "bar", submit }, name, save));
  return box;
}

const option = (value, text, chosen) => h("option", { value, ...(value === chosen ? { selected: true } : {}) }, text);

export const gridQuestion = (facts, columns, compared) => {
  const state = now();
  const view = { show: state.show, reason: state.reason, ranges: state.ranges, words: state.words, tags: state.tags, captions: searched(state), sort: state.sort, column: state.column, descending: state.descending, region: regionOf(facts) };
  return { recipe: active(), view, compared: view.region.length ? compared() : [], columns: columns(), lasso: state.lasso, near: state.near, finding: state.finding };
};

