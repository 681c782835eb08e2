// Two recipes as three columns: what only the first keeps, what both keep, what only the second keeps.

import { h, fill, count, who } from "./dom.js";
import { change } from "./state.js";
import { Grid } from "./grid.js";

/** Of each column: which of the two recipes keep its pairs, and the one whose verdict its cards show. */
const COLUMNS = [[[1, 0], 1], [[1, 1], 0], [[0, 1], 0]];

export class Columns {
  /** `question()` returns the arguments of the grid's request, `compared()` the recipes; `use` makes a grid the one that keys act on. */
  constructor(question, compared, use) {
    this.grids = COLUMNS.map(([region, judge], number) => {
      const grid = new Grid(() => {
        const asked = question();
        return { ...asked, recipe: compared()[judge], compared: compared(), view: { ...asked.view, region, show: "all", reason: 0 } };
      }, `column-${number}`);
      grid.scroller = h("div", { class: "pairs" }, grid.box);
      grid.box.addEventListener("focus", () => use(grid));
      return grid;
    });
    this.heads = COLUMNS.map(() => h("h3", null));
    this.box = h("div", { class: "columns", role: "group", "aria-label": "The pairs of two recipes" },
      this.grids.map((grid, number) => h("section", { class: "column" }, this.heads[number], grid.told, grid.scroller)));
  }

  /** Shows the names and colours of the two recipes, and how many pairs neither keeps, from an answer to `regions`. */
  draw(place, above, recipes, found) {
    const only = (number) => ["Only ", who(recipes[number]), h("small", null, ", dropped by ", who(recipes[1 - number]))];
    [only(0), "Both", only(1)].forEach((name, number) => fill(this.heads[number], name));
    const neither = found.regions.find((region) => !region.pattern.includes(1))?.rows ?? 0;
    fill(place, above, h("p", { class: "told" }, `${count(neither)} ${neither === 1 ? "pair is" : "pairs are"} dropped by both. `,
      neither ? h("button", { type: "button", id: "neither", click: () => change({ region: [0, 0], view: "grid" }) }, "Show them") : null));
    for (const grid of this.grids) grid.lay(true);
  }

  load() {
    return Promise.all(this.grids.map((grid) => grid.load()));
  }
}
