// The answers of a page without a server: worked out from the drawn pairs in the page. static.py describes what it stores.
//
// A drawn pair stands for as many pairs of the pool as its stratum has for each one drawn from it. Counts are sums of these
// weights, so they estimate the pool. What a given subset keeps is stored, and counted over the whole pool.

import { choices, framed, newest as latest } from "./answers.js";

export const newest = latest;

const text = (id) => document.getElementById(id).textContent;
const stored = JSON.parse(text("stored"));

function array(Kind, written) {
  const letters = atob(written);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = letters.charCodeAt(at);
  return new Kind(bytes.buffer);
}

const { facts, pairs } = stored;
const POOL = facts.rows;
const many = pairs.length;
const PLACES = Array.from(pairs, (_, place) => place);
const rows = array(Uint32Array, stored.rows);
const places = new Map([...rows].map((row, place) => [row, place]));
const order = array(Float64Array, stored.order);
const strata = array(Uint8Array, stored.strata);
const drawn = stored.sizes.map((_, stratum) => strata.filter((other) => other === stratum).length);
const weights = Float64Array.from(strata, (stratum) => stored.sizes[stratum] / drawn[stratum]);
const whole = weights.every((weight) => weight === 1) && many === POOL;
const columns = new Map(Object.entries(stored.columns).map(([name, column]) => [name, {
  facts: { edges: column.edges, ends: column.ends, pool: column.pool, null: column.null, whole: column.whole },
  values: array(Float32Array, column.values), bars: array(Uint8Array, column.bars), below: array(Uint32Array, column.below), upto: array(Uint32Array, column.upto),
}]));
const words = new Map(Object.entries(stored.words).map(([name, column]) => [name, { known: column.known, codes: array(Int32Array, column.codes) }]));
const scores = new Map(Object.entries(stored.scores).map(([key, values]) => [key, { values: array(Float64Array, values), single: /^[\w.]+$/.test(JSON.parse(key)[0]) }]));
const draw = array(Float64Array, stored.draw); // the scrambled uids
const maps = new Map(Object.entries(stored.maps).map(([name, map]) => [name, { names: map.names, packed: array(Uint8Array, map.packed).buffer }]));
const wordOf = (name, place) => words.get(name)?.known[words.get(name).codes[place]] ?? null;
const sum = (here) => weights.reduce((total, weight, place) => (here(place) ? total + weight : total), 0);
const count = (value) => Math.round(value).toLocaleString("en");
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const given = facts.recipes.filter((entry) => entry.from === "subset");
const subsets = stored.subsets.map((subset) => ({ ...subset, codes: array(Uint16Array, subset.codes), keep: array(Uint8Array, subset.keep), names: subset.columns, often: subset.often && array(Uint32Array, subset.often), exact: true }));

// ---- images

const blocks = new Map();

export function imageUrl(kind, row) {
  const place = places.get(row);
  const block = Math.floor(place / stored.size);
  if (!blocks.has(block)) blocks.set(block, text(`images-${block}`).split("\n"));
  return `data:image/${stored.kind};base64,${blocks.get(block)[place % stored.size]}`;
}

export const shown = () => "";

export const show = () => {}; // the run does not grow

export const send = async () => { throw new Error("this page has no server to search by an image: use tamis explore"); };

// ---- recipes, as `tamis.recipes.steps` applies them

const number = (value) => (typeof value === "string" ? Number(value.replace(".inf", "Infinity")) : value);
const general = (value, digits = 15) => String(Number(number(value).toPrecision(digits))).replace("Infinity", "inf");
const half = (value) => Math.floor(Number(value.toFixed(9)) + 0.5);
const nameOf = (step) => (typeof step === "string" ? step : Object.keys(step)[0]);

/** The values of a score: of a column, or of an expression that a given recipe has. */
function scoreOf(score, names) {
  const column = columns.get(names[score] ?? score);
  if (column) return { values: column.values, single: true };
  const found = scores.get(JSON.stringify([score, names]));
  if (!found) throw new Error(`${score} is not in this page: use the command`);
  return found;
}

const limits = {
  at_least: ({ score, value }) => [value, null, `${score} >= ${general(value)}`, `${score} below ${general(value)}`],
  at_most: ({ score, value }) => [null, value, `${score} <= ${general(value)}`, `${score} above ${general(value)}`],
  between: ({ score, low, high }) => [low, high, `${general(low)} <= ${score} <= ${general(high)}`, `${score} outside ${general(low)} to ${general(high)}`],
};

/** Keeps n pairs of the pool with the highest values, ties by scrambled uid: a pair stays if the middle of its weight does. */
function best(values, n, among) {
  const ordered = PLACES.filter((place) => among[place]).sort((one, other) => values[other] - values[one] || draw[one] - draw[other] || one - other);
  let before = 0;
  const kept = ordered.filter((place) => {
    before += weights[place];
    return before - weights[place] / 2 < n;
  });
  return { kept: new Set(kept), cut: kept.length ? values[kept.at(-1)] : null, enough: n <= before - margin(among) };
}

/**
 * What one step does: `says` is its line, `drops(place)` 0 for a pair that stays, the number of its reason, or -1 for one
 * without a value. `known`: how many pairs of the pool stay, where that is known.
 */
function fit(step, candidates, known, names) {
  const kind = nameOf(step);
  const settings = step[kind] ?? {};
  const { score, missing = "error" } = settings;
  if (limits[kind]) {
    const [low, high, says, reason] = limits[kind](settings);
    const { values, single } = scoreOf(score, names);
    const [least, most] = [low ?? -Infinity, high ?? Infinity].map(number).map(single ? Math.fround : (value) => value);
    const ends = [low, high].map((end, side) => (end === null ? null : [least, most][side]));
    return { says, reasons: [reason], missing, score, ends, drops: (place) => (Number.isNaN(values[place]) ? -1 : Number(!(values[place] >= least && values[place] <= most))) };
  }
  if (["top_fraction", "top_n", "random_fraction"].includes(kind) && settings.per === undefined && !settings.seed) {
    const random = kind === "random_fraction";
    const { fraction, n: asked, of = "survivors" } = settings;
    const values = random ? draw.map((value) => -value) : scoreOf(score, names).values;
    const n = asked ?? half(fraction * (of === "pool" ? POOL : known ?? sum((place) => candidates[place])));
    const { kept, cut, enough } = best(values, n, candidates.map((on, place) => Number(on && !Number.isNaN(values[place]))));
    const share = asked === undefined ? `${general(100 * fraction, 6)} % of the ${of}` : count(asked);
    return {
      says: random ? `random ${share} (seed 0)` : `top ${share} by ${score}`, reasons: [random ? "not drawn" : `${score} below the cut`], missing, score, cut, ends: [random ? null : cut, null],
      known: enough && (asked !== undefined || of === "pool" || known !== null) ? n : null, drops: (place) => (Number.isNaN(values[place]) ? -1 : Number(!kept.has(place))),
    };
  }
  if (kind === "equals") {
    const wanted = [settings.value].flat();
    const name = names[score] ?? score;
    const listed = wanted.map((value) => (Number.isInteger(value) ? value.toFixed(1) : value)).join(" or ");
    const readable = score === "status" && same([...new Set(wanted)].sort(), facts.readable);
    const told = { says: readable ? "readable" : `${score} is ${listed}`, reasons: [readable ? "not readable" : `${score} is not ${listed}`], missing };
    if (words.has(name)) return { ...told, drops: (place) => (wordOf(name, place) === null ? -1 : Number(!wanted.map(String).includes(wordOf(name, place)))) };
    const { values } = scoreOf(score, names);
    const numbers = wanted.map((value) => Math.fround(number(value)));
    return { ...told, score, drops: (place) => (Number.isNaN(values[place]) ? -1 : Number(!numbers.includes(values[place]))) };
  }
  if (["all_of", "any_of", "none_of"].includes(kind)) {
    const found = settings.map((part) => apply(typeof part === "string" ? facts.recipes.find((entry) => entry.name === part).start.select : [part].flat(), names));
    const called = settings.map((part, place) => (typeof part === "string" ? part : found[place].funnel.map((line) => line.step).join(" then ") || "every row"));
    const says = `${kind.replace("_", " ")}: ${called.join(", ")}`;
    const first = (keeps) => (place) => found.findIndex((part) => (part.codes[place] === 0) === keeps) + 1;
    const cuts = kind === "none_of" ? [] : found.flatMap((part, at) => part.cuts.map((cut) => ({ ...cut, code: kind === "any_of" ? 1 : at + 1 })));
    if (kind === "any_of") return { says, cuts, reasons: [`in none of ${called.join(", ")}`], drops: (place) => Number(!first(true)(place)) };
    return { says, cuts, reasons: called.map((name) => `${kind === "all_of" ? "not in" : "in"} ${name}`), drops: first(kind === "none_of") };
  }
  throw new Error(`${kind} looks at the whole pool, which is not in this page: use the command`);
}

/**
 * What a step does; one of a given subset that looks at the whole pool drops the pairs that it dropped there. Behind other
 * steps it might drop others: then the subset's name is `assumed`.
 */
function fitted(select, at, names, ...about) {
  try {
    return fit(select[at], ...about, names);
  } catch (error) {
    const having = given.flatMap(({ name, start }, number) => (start.select ?? []).map((step, place) => ({
      name, number, place, step, alike: same(start.select.slice(0, place), select.slice(0, at)) && same(start.columns ?? {}, names),
    }))).filter(({ step }) => same(step, select[at]));
    if (!having.length) throw error;
    const { name, number, place: there, alike } = having.find((one) => one.alike) ?? having[0];
    const { codes, reasons, funnel } = subsets[number];
    return { says: funnel[there].step, reasons: [`as in the subset ${name}`], assumed: alike ? null : name, drops: (place) => Number(reasons[codes[place] - 1]?.step === there + 1) };
  }
}

/** Applies steps in order, each to the pairs that the one before left: `tamis.recipes.steps.outcome.run_steps`. */
function apply(select, names) {
  const codes = new Uint16Array(many);
  const done = { codes, names, reasons: [], funnel: [], cuts: [], known: POOL, assumed: null };
  for (const [at, step] of select.entries()) {
    const first = done.reasons.length;
    const found = fitted(select, at, names, codes.map((code) => Number(!code)), done.known);
    const texts = [...found.reasons, `no value for ${found.score ?? step[nameOf(step)].score}`];
    const totals = texts.map(() => 0);
    let kept = 0;
    for (let place = 0; place < many; place += 1) {
      if (codes[place]) continue;
      const code = found.drops(place);
      if (!code) kept += weights[place];
      else {
        totals[code < 0 ? texts.length - 1 : code - 1] += weights[place];
        codes[place] = first + (code < 0 ? texts.length : code);
      }
    }
    const missing = totals.at(-1);
    if (missing && found.missing !== "drop") throw new Error(`${nameOf(step)}: about ${count(missing)} pairs have no ${texts.at(-1).slice(3)}. Add 'missing: drop' to the step`);
    texts.slice(0, missing ? undefined : -1).forEach((reason, place) => done.reasons.push({ code: first + place + 1, text: `Step ${at + 1}: ${reason}`, step: at + 1, rows: Math.round(totals[place]) }));
    const before = totals.reduce((total, value) => total + value, kept);
    done.funnel.push({ step: found.says, before, kept, cut: found.cut, dropped: missing ? { missing } : {} });
    const ends = found.ends?.some((end) => end !== null) ? [{ score: found.score, low: found.ends[0], high: found.ends[1], code: 1, dropped: totals[0] }] : [];
    done.cuts.push(...(found.cuts ?? ends).map((cut) => ({ ...cut, code: first + cut.code })));
    done.assumed ??= found.assumed ?? null;
    done.known = found.known !== undefined ? found.known : before === kept ? done.known : null;
  }
  return done;
}

const verdicts = new Map(); // by recipe as JSON

/** What a recipe does with each drawn pair, and with the pool. */
function choose(recipe) {
  const number = recipe.saved ?? given.findIndex(({ start }) => same(start.select, recipe.select) && (!recipe.columns || same(start.columns, recipe.columns)));
  if (number >= 0) return subsets[number];
  const key = JSON.stringify([recipe.select, recipe.columns]);
  if (!verdicts.has(key)) {
    const done = apply(recipe.select ?? [], recipe.columns ?? {});
    const keep = Uint8Array.from(done.codes, (code) => Number(!code));
    for (const cut of done.cuts) cut.dropped = Math.min(cut.dropped, sum((place) => done.codes[place] === cut.code)); // inside another step
    const kept = done.known ?? sum((place) => keep[place]);
    if (verdicts.size > 24) verdicts.clear();
    verdicts.set(key, { ...done, keep, kept, times: kept, ranking: done.cuts.reduceRight((most, cut) => (most && most.dropped >= cut.dropped ? most : cut), undefined) });
  }
  return verdicts.get(key);
}

const reasonOf = (verdict, place) => verdict.reasons[verdict.codes[place] - 1]?.text ?? (verdict.keep[place] ? "" : "not in the subset");

/** Half the 95 % interval of a count in a stratified sample (Cochran 1977, 5.4), with Agresti and Coull's shares (1998). */
function margin(keep) {
  const hits = drawn.map(() => 0);
  strata.forEach((stratum, place) => { hits[stratum] += keep[place]; });
  const variance = drawn.map((n, stratum) => {
    const share = (hits[stratum] + 2) / (n + 4);
    return n && stored.sizes[stratum] * (stored.sizes[stratum] - n) * share * (1 - share) / n;
  });
  return 1.96 * Math.sqrt(variance.reduce((total, value) => total + value, 0));
}

/** How sure the number of kept pairs is. */
function sureness(verdict) {
  if (verdict.assumed) return `Estimated: a step drops the pairs that it dropped in the subset ${verdict.assumed}, but here other pairs come to it`;
  if (whole) return "Counted: all pairs of the run are in this page";
  if (verdict.exact) return `Counted over all ${count(POOL)} pairs`;
  if (verdict.known !== null) return `The recipe sets this number; which pairs they are is estimated from the ${count(many)} in this page`;
  const percents = [-1, 1].map((side) => (100 * Math.min(POOL, Math.max(0, verdict.kept + side * margin(verdict.keep)))) / POOL);
  return `Estimated from the ${count(many)} pairs in this page: ${percents.map((value) => value.toFixed(1)).join(" to ")} % (95 % interval)`;
}

const quoted = (name) => `'${String(name).replaceAll("'", "'\\''")}'`;

function chosen({ recipe, columns: shown = [], ...about }) {
  const verdict = choose(recipe);
  const among = passing({ recipe, ...about });
  const keep = among ? verdict.keep.map((kept, place) => kept && among[place]) : verdict.keep;
  const { name = "mine", select = [], ...rest } = recipe;
  const lines = Object.entries({ name, ...rest }).map(([key, value]) => `${key}: ${JSON.stringify(value)}\n`);
  const yaml = recipe.saved === undefined ? `${lines.join("")}select:${select.length ? "" : " []"}\n${select.map((step) => `- ${JSON.stringify(step)}\n`).join("")}` : "";
  const file = `${name}.yaml`;
  return {
    ...verdict, estimated: !whole && verdict.known === null, rows: POOL, yaml, labels: {}, models: [sureness(verdict), ...(verdict.models ?? [])],
    command: yaml && `cat > ${quoted(file)} <<'RECIPE'\n${yaml}RECIPE\ntamis select ${quoted(facts.run)} --recipe ${quoted(file)} --out ${quoted(`${name}.parquet`)}`,
    bars: Object.fromEntries(shown.map((column) => [column, barsOf(column, keep)])),
    shown: among && Object.fromEntries(shown.map((column) => [column, barsOf(column, among)])),
  };
}

function barsOf(name, keep) {
  const { bars, facts: { pool } } = columns.get(name);
  const counts = pool.map(() => 0);
  bars.forEach((bar, place) => { if (keep[place] && bar < counts.length) counts[bar] += weights[place]; });
  return counts;
}

// ---- views

function inside(points, x, y) {
  let odd = false;
  points.forEach(([x1, y1], at) => {
    const [x2, y2] = points.at(at - 1);
    if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) odd = !odd;
  });
  return odd;
}

const pointsOf = (name) => {
  const [found, bytes, start] = framed(maps.get(name).packed);
  const column = (Kind, at) => new Kind(bytes, start + 4 * at * found.points, found.points);
  return { x: column(Float32Array, 0), y: column(Float32Array, 1), places: [...column(Uint32Array, 2)].map((row) => places.get(row)) };
};

const alternate = (one, other) => Array.from({ length: Math.max(one.length, other.length) }, (_, at) => [one[at], other[at]]).flat().filter((place) => place !== undefined);

/** 1 for each drawn pair that passes the filters of a view except `show`, null if it has none: `Explorer.passing`. */
function passing({ recipe, view, compared = [], lasso, finding }) {
  if (!view || !(view.reason || lasso || finding || [view.region, view.ranges, view.words, view.tags, view.captions].some((some) => some.length))) return null;
  const verdict = choose(recipe);
  const others = compared.map(choose);
  const points = lasso && pointsOf(lasso.map);
  const searched = finding ? new Set(stored.having[finding]) : lasso && new Set(points.places.filter((_, at) => inside(lasso.points, points.x[at], points.y[at])));
  const texts = view.captions.map((text) => choices(text).map((part) => part.toLowerCase()));
  const among = (place) => (!view.reason || verdict.codes[place] === view.reason)
    && view.region.every((bit, at) => others[at].keep[place] === bit)
    && view.ranges.every(([name, low, high]) => columns.get(name).values[place] >= Math.fround(low ?? -Infinity) && columns.get(name).values[place] <= Math.fround(high ?? Infinity))
    && view.words.every(([name]) => view.words.some(([other, word]) => other === name && wordOf(name, place) === word))
    && view.tags.every(([tag, there]) => (tag ? pairs[place].tags.includes(tag) : pairs[place].tags.length > 0) === there)
    && texts.every((parts) => parts.some((part) => (pairs[place].caption ?? "").toLowerCase().includes(part))) && (!searched || searched.has(place));
  return PLACES.map((place) => Number(among(place)));
}

/** The drawn pairs of a view in its order: `tamis.reports.explore.cached_run.rows_of`. */
function listed(about) {
  const { recipe, view } = about;
  const verdict = choose(recipe);
  const among = passing(about);
  const shown = PLACES.filter((place) => (!among || among[place]) && (view.reason || view.show === "all" || (view.show === "kept") === Boolean(verdict.keep[place])));
  const by = (some, key) => [...some].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    return Number.isNaN(a) - Number.isNaN(b) || (a < b ? -1 : a > b ? 1 : order[one] - order[other]);
  });
  const value = (place) => columns.get(view.column).values[place];
  if (view.sort === "random") return by(shown, () => 0);
  if (view.sort === "score") return by(shown, (place) => (view.descending ? -value(place) : value(place)));
  if (view.sort === "extremes") return [...new Set(alternate(by(shown, value), by(shown, (place) => -value(place))))];
  if (view.sort === "row") return shown;
  const cut = verdict.ranking;
  const { values } = cut ? scoreOf(cut.score, verdict.names) : {};
  const away = (place) => (!cut ? 0 : verdict.keep[place] || verdict.codes[place] === cut.code ? Math.abs(Math.min(values[place] - (cut.low ?? -Infinity), (cut.high ?? Infinity) - values[place])) : Infinity);
  return alternate(...[1, 0].map((side) => by(shown.filter((place) => verdict.keep[place] === side), away)));
}

const finite = (value) => (Number.isFinite(value) ? value : null);

function card(place, verdict, names) {
  const { caption, caption_length, status, tags } = pairs[place];
  return { row: rows[place], caption: (caption ?? "").slice(0, 400), cut_off: caption_length > 400, no_caption: caption === null, status, tags,
    kept: Boolean(verdict.keep[place]), reason: reasonOf(verdict, place), repeats: verdict.repeats?.[rows[place]] ?? null, scores: Object.fromEntries(names.map((name) => [name, finite(columns.get(name).values[place])])) };
}

function cards(about) {
  const some = listed(about);
  const here = some.slice(about.start, about.start + about.count);
  if (about.numbers) return { rows: here.map((place) => rows[place]) };
  const verdict = choose(about.recipe);
  const kept = some.filter((place) => verdict.keep[place]).length;
  const cut = verdict.ranking;
  const sides = about.view.sort === "cut" ? { counts: [kept, some.length - kept], cut: cut ? [cut.score, cut.low, cut.high] : null } : null;
  return { drawn: !whole, total: some.length, listed: some.length, start: about.start, cards: here.map((place) => card(place, verdict, about.columns)), sides };
}

/** The cuts of a recipe by column, [] for a column that it reads without a cut: each with the share of the pool below it. */
function cutsOf(recipe) {
  const found = new Map();
  const { cuts, names = {} } = choose(recipe);
  const read = [...JSON.stringify(recipe.select ?? []).matchAll(/"score":"(.*?)"/g), ...cuts.map(({ score }) => [score, score])];
  for (const word of read.flatMap(([, score]) => [score, ...score.match(/[\p{L}_][\p{L}\p{N}_.]*/gu) ?? []])) if (columns.has(names[word] ?? word)) found.set(names[word] ?? word, []);
  for (const { score, low, high } of cuts) {
    const { values } = columns.get(names[score] ?? score) ?? {};
    for (const end of values ? [low, high].filter(Number.isFinite) : [])
      found.get(names[score] ?? score).push([end, (sum((place) => values[place] < end) + sum((place) => values[place] <= end)) / 2 / sum((place) => !Number.isNaN(values[place]))]);
  }
  return found;
}

function pair({ row, recipe = { select: [] }, recipes }) {
  const place = places.get(row);
  if (place === undefined) throw new Error("this pair is not among those in the page");
  const cuts = cutsOf(recipe);
  const ranked = [...columns].map(([name, { values, below, upto, facts: { null: none } }]) => ({ name, read: cuts.has(name), cuts: cuts.get(name) ?? [], value: finite(values[place]), percentile: finite(values[place]) === null ? null : (below[place] + upto[place]) / 2 / (POOL - none) })).sort((one, other) => other.read - one.read);
  const judged = recipes.map(([name, recipe]) => {
    try {
      const verdict = choose(recipe);
      return { name, kept: Boolean(verdict.keep[place]), times: (verdict.often ?? verdict.keep)[place], reason: reasonOf(verdict, place), repeats: verdict.repeats?.[row] ?? null };
    } catch (error) {
      return { name, kept: null, reason: error.message };
    }
  });
  return { ...pairs[place], row, scores: ranked, verdicts: judged, words: [...words.keys()].map((name) => [name, wordOf(name, place)]), texts: [], neighbours: [], painted: "not in this page" };
}

function regions({ compared }) {
  const patterns = new Map();
  const some = compared.map(choose);
  PLACES.map((place) => some.map(({ keep }) => keep[place])).forEach((pattern, place) => patterns.set(String(pattern), (patterns.get(String(pattern)) ?? 0) + weights[place]));
  const sorted = [...patterns].sort((one, other) => other[1] - one[1]);
  return { sets: some.map(({ kept }) => kept), regions: sorted.map(([pattern, pool]) => ({ pattern: pattern.split(",").map(Number), rows: pool })) };
}

function wordCounts({ column, part, recipe, ...about }) {
  const among = passing({ recipe, ...about });
  const { known, codes } = words.get(column);
  const { keep } = choose(recipe);
  const found = known.map((word) => ({ word: word.slice(0, 120), whole: word.length <= 120, pool: 0, kept: 0 }));
  codes.forEach((code, place) => {
    if (code < 0) return;
    found[code].pool += weights[place];
    found[code].kept += keep[place] * (among?.[place] ?? 1) * weights[place];
  });
  const some = found.filter((_, code) => known[code].toLowerCase().includes(part.toLowerCase())).sort((one, other) => other.pool - one.pool || (one.word < other.word ? -1 : 1));
  return { different: known.length, found: some.length, words: some.slice(0, 200) };
}

/** Colours of a map: `tamis.reports.explore.queries.Explorer.map_colours`. */
function colours({ map, by, recipe, compared }) {
  const points = pointsOf(map).places;
  const [NONE, SHADES, LEVELS] = [255, 9, 16];
  let [legend, ends, codeOf] = [];
  if (columns.has(by)) {
    const { values } = columns.get(by);
    const sorted = points.map((place) => values[place]).filter(Number.isFinite).sort((one, other) => one - other);
    const edges = Array.from({ length: LEVELS + 1 }, (_, level) => sorted[Math.round((level * (sorted.length - 1)) / LEVELS)] ?? 0);
    ends = [edges[0], edges[LEVELS / 2], edges[LEVELS]];
    legend = edges.slice(1).map(() => ({}));
    codeOf = (place) => (Number.isFinite(values[place]) ? edges.slice(1, -1).filter((edge) => edge <= values[place]).length : NONE);
  } else {
    const some = (by === "kept" ? [recipe] : compared).map(choose);
    const valueOf = words.has(by) ? (place) => wordOf(by, place) : (place) => String(some.map(({ keep }) => keep[place]));
    const tally = new Map(by === "kept" ? [["0", Infinity], ["1", 0]] : []);
    for (const value of points.map(valueOf)) if (value !== null) tally.set(value, (tally.get(value) ?? 0) + 1);
    const top = [...tally].sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1)).map(([value]) => value).slice(0, SHADES);
    legend = top.map((value) => (by === "kept" ? { text: ["dropped", "kept"][value] } : words.has(by) ? { text: value.slice(0, 120) } : { pattern: value.split(",").map(Number) }));
    codeOf = (place) => (valueOf(place) === null ? NONE : top.includes(valueOf(place)) ? top.indexOf(valueOf(place)) : top.length);
  }
  const codes = Uint8Array.from(points, codeOf);
  const tally = (here) => codes.filter(here).length;
  legend = legend.map((entry, code) => ({ ...entry, rows: tally((other) => other === code) }));
  return [{ by, legend, ends, others: tally((code) => code >= legend.length && code < NONE), none: tally((code) => code === NONE) }, codes.buffer, 0];
}

// ---- the answers by name, as in pages.py

/** Whether the page can apply a recipe, and it is not that of a given subset. */
function offered({ from, recipe }) {
  try {
    return from === "subset" || !choose(recipe).exact;
  } catch {
    return false; // it looks at what is not in the page
  }
}

const ANSWERS = {
  facts: () => ({ ...facts, static: true, recipes: facts.recipes.filter(offered) }),
  choose: chosen,
  histograms: (about) => Object.fromEntries(about.columns.map((name) => [name, columns.get(name).facts])),
  rows: cards,
  card: ({ row, recipe, columns: names }) => card(places.get(row), choose(recipe), names),
  map: ({ map }) => framed(maps.get(map).packed).map((part, at) => (at ? part : { ...part, of: part.points })),
  names: ({ map }) => maps.get(map).names,
  progress: () => null,
  findings: () => stored.found,
  words: wordCounts, regions, pair, colours,
};

export async function ask(name, about = {}) {
  if (!ANSWERS[name]) throw new Error("this page has no server: use the command, or tamis explore");
  return ANSWERS[name](structuredClone(about));
}
