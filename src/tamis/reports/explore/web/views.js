// The other views: disagreements of recipes, rejects.

import { h, fill, foreign, count, command, copy, percent, need, who } from "./dom.js";
import { ask } from "./ask.js";
import { now, change, comparable, isEmpty, regionOf } from "./state.js";

/** Recipes side by side: two as three columns, more as a bar per combination of their verdicts, as in an UpSet plot. */
export async function disagree(place, facts, compared, columns) {
  const state = now();
  const chosen = comparable(facts);
  const opened = regionOf(facts);
  const names = ["@", ...facts.recipes.map((entry) => entry.name)];
  const unique = [...new Set(names)];
  const picks = h("fieldset", { class: "picks" }, h("legend", null, `Which recipes (2 to ${facts.compared})`),
    unique.map((name) => h("label", null,
      h("input", { type: "checkbox", id: `pick-${name}`, checked: chosen.includes(name), disabled: !chosen.includes(name) && chosen.length >= facts.compared,
        change: (event) => change({ compared: event.target.checked ? [...chosen, name] : chosen.filter((each) => each !== name), region: [] }) }),
      name === "@" ? "the recipe on the left" : who(facts.recipes.find((entry) => entry.name === name)))));
  const lacking = state.compared.filter((name) => !chosen.includes(name));
  const left = lacking.length ? h("p", { class: "told left-out" }, "Not compared (unknown here, or too many): ", lacking.map((name, number) => [number ? ", " : "", foreign(name)]), ".") : null;
  if (chosen.length < 2) {
    const other = (name) => facts.recipes.find((entry) => entry.kept !== null && ![name, "no-filter", "random"].includes(entry.name) && JSON.stringify(entry.start.select) !== JSON.stringify(state.recipe.select))?.name;
    const one = isEmpty() ? chosen[0] ?? other() : "@";
    const two = [one, chosen.find((name) => name !== one) ?? other(one)];
    fill(place, picks, left, two.every(Boolean)
      ? h("div", { class: "need" }, h("p", null, "Two or more recipes show where they agree and where they do not."),
        h("button", { id: "compare-two", type: "button", class: "main", click: () => change({ compared: two, region: [] }) }, "Compare ", two.map((name, number) => [number ? " with " : "", name === "@" ? "the recipe on the left" : foreign(name)])))
      : need("Two recipes are needed to see where they agree, and the run has no scores for another one.", facts.commands.recipes));
    return undefined;
  }
  const found = await ask("regions", { compared: compared() });
  if (now() !== state && JSON.stringify(now().compared) !== JSON.stringify(state.compared)) return undefined;
  const most = Math.max(...found.regions.map((region) => region.rows), 1);
  const label = (name) => (name === "@" ? "on the left" : name);
  if (chosen.length === 2) return columns.draw(place, [picks, left], chosen.map((name) => ({ ...facts.recipes.find((entry) => entry.name === name), name: name === "@" ? "the recipe on the left" : name })), found);
  const same = (pattern) => JSON.stringify(pattern) === JSON.stringify(opened);
  return fill(place, picks, left, h("div", { class: "upset", role: "group", "aria-label": "How many pairs each combination of recipes keeps" },
    h("div", { class: "sets" },
      chosen.map((name, number) => h("span", null, who({ ...facts.recipes.find((entry) => entry.name === name), name: label(name) }), h("small", null, ` ${count(found.sets[number])}`))), h("span", null, "pairs")),
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

/** A line with a bar, which shows its pairs; with `of` the bar has their number and share. */
const row = (of, most) => (text, rows, pressed, click) => h("button", { type: "button", class: "reason", disabled: !rows, "aria-pressed": String(pressed), click },
  h("span", { class: "text" }, foreign(text)), h("span", { class: "bar-cell" }, h("i", { style: { width: `${(100 * rows) / most}%` } }), of ? h("span", null, `${count(rows)} · ${percent(rows, of)}`) : null));

/** What may be wrong with pairs, the most harmful first, and recipes worth trying. */
export async function findings(place) {
  if (!place.childElementCount) fill(place, h("p", { class: "quiet" }, "Looking for what may be wrong …"));
  const found = await ask("findings");
  if (now().view !== "findings") return;
  const line = row(null, Math.max(...found.findings.map((each) => each.rows), 1));
  fill(place,
    h("section", { id: "findings" }, h("h3", null, "What may be wrong, the most harmful first"), found.findings.length ? h("p", { class: "quiet" }, "A click shows the pairs.") : null,
      found.findings.length ? found.findings.map((each) => {
        const on = now().finding === each.ident;
        return [line(each.sentence, each.rows, on, () => change({ finding: on ? null : each.ident, show: "all", reason: 0, words: [] })),
          on ? h("p", { class: "hint" }, each.rule, ". ", each.drops) : null];
      }) : h("p", { class: "quiet" }, "Nothing was found in what is measured so far.")),
    found.proposals.length ? h("section", { id: "proposals" }, h("h3", null, "Recipes worth trying"),
      found.proposals.map((each) => h("div", { class: "proposal" }, h("b", null, foreign(each.recipe)), each.keeps ? ` keeps ${each.keeps}. ` : " ", each.why, " ",
        h("code", { tabindex: 0 }, each.command), " ", h("button", { type: "button", "aria-label": `Copy the command for ${each.recipe}`, click: () => copy(each.command, "Command") }, "Copy")))) : null,
    found.race ? h("section", { id: "race" }, h("h3", null, "Which recipe trains the better model"), h("p", { class: "quiet" }, "This trains small models on what each recipe keeps. Add --tasks DIR for your own tasks."), command(found.race)) : null);
}

/** Why pairs are dropped: a bar per reason of the recipe and per status. */
export function rejects(place, facts, found) {
  const most = Math.max(...(found?.reasons ?? []).map((reason) => reason.rows), ...Object.values(facts.statuses), 1);
  const line = row(facts.rows, most);
  const state = now();
  const broken = Object.entries(facts.statuses).filter(([status]) => status !== "ok");
  fill(place,
    h("section", null, h("h3", null, "Dropped by the recipe"),
      found?.reasons.length ? found.reasons.map((reason) => line(reason.text, reason.rows, state.reason === reason.code, () => change({ reason: state.reason === reason.code ? 0 : reason.code, show: state.reason === reason.code ? "dropped" : "all", words: [] })))
        : h("p", { class: "quiet" }, "The recipe drops nothing.")),
    broken.length ? h("section", null, h("h3", null, "Damaged or incomplete pairs"),
      broken.map(([status, rows]) => {
        const on = state.words.some(([name, word]) => name === "status" && word === status);
        return line(status.replaceAll("_", " "), rows, on, () => change({ words: on ? [] : [["status", status]], reason: 0, show: on ? "dropped" : "all" }));
      })) : null);
}
