// A pool that is being measured: its first pairs, then a line that says how far it is. The page grows when its user wants it to.

import { h, fill, foreign, count, copy, say } from "./dom.js";
import { ask, show, shown } from "./ask.js";
import { now, change, listen } from "./state.js";
import { face } from "./grid.js";

const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const line = h("div", { id: "measured", role: "status" });
let touched = false; // whether the user has begun to work
listen(() => { touched = true; });

/** Shows the first pairs until a shard is measured; then, or for a run that nothing measures, the page can start. */
export async function measured(place) {
  document.getElementById("head").after(line);
  const cards = h("div", { class: "first", role: "list", "aria-label": "First pairs of the pool" });
  for (;;) {
    const found = await ask("progress");
    if (!found) return line.remove();
    if (found.ready && found.pairs) return void (await renew(found));
    for (const pair of (await ask("first")).slice(cards.childElementCount)) {
      if (!cards.isConnected) fill(place, h("h2", null, "First pairs"), cards);
      cards.append(h("div", { class: "card still", role: "listitem" }, face(pair), h("span", { class: "caption" }, pair.no_caption ? h("i", null, "no caption") : foreign(pair.caption))));
    }
    draw(found);
    const over = ["done", "enough", "failed"].includes(found.state);
    if (over) for (const pane of ["recipe", "scores"]) fill(document.getElementById(pane)); // nothing is being read
    const none = Object.keys(found.failures).length ? "No shard could be read." : "The pool has no pairs.";
    if (over && !cards.isConnected) fill(place, h("p", { class: "problem", role: "alert" }, found.error || none));
    await later(over ? 2000 : 250);
  }
}

/** Asks for the finished shards; returns the new numbers of some rows. */
async function renew(found, rows = []) {
  const { version, rows: moved } = await ask("refresh", { since: shown(), rows });
  show(version);
  draw(found);
  return moved;
}

/** Follows the measuring, and calls `grow` when the page shows more: at once while its user has done nothing, else when asked. */
export async function follow(grow, selection) {
  if (!line.isConnected) return;
  let busy = null;
  const more = () => (busy ??= (async () => {
    const { pair, near } = now();
    const rows = [pair, near?.row, ...selection().chosen].map((row) => row ?? -1);
    const [opened, like, ...chosen] = await renew(await ask("progress"), rows);
    selection().chosen = new Set(chosen.filter((row) => row !== null));
    const before = touched;
    if (pair !== null || near?.row !== undefined) change({ pair: opened, near: near?.row === undefined ? near : { ...near, row: like } }, { replace: true });
    await grow();
    touched = before;
  })().catch((error) => say(error.message, true)).finally(() => { busy = null; }));
  for (;;) {
    await later(1000);
    const found = await ask("progress").catch(() => null); // if the server is gone, the user's next action says so
    if (!found) continue;
    const fresh = found.ready - Number(shown());
    // Seldom: each time, the images move.
    const calm = !touched && !scrollY && !document.activeElement?.matches("input, select, textarea, summary");
    if (fresh && !busy && calm && (found.state !== "measuring" || found.ready >= 1.5 * Number(shown()))) await more();
    else if (!busy) draw(found, fresh, more);
  }
}

const shards = (number) => `${count(number)} ${number === 1 ? "shard" : "shards"}`;

/** How far the measuring is, what failed, and what may be done about it. */
function draw(found, fresh = 0, more = null) {
  const failed = Object.entries(found.failures);
  const busy = found.state === "measuring";
  const rate = found.rate ? `, ${count(found.rate)} pairs/s${found.left ? `, ${count(found.left)} s left` : ""}` : "";
  const text = busy ? `Measuring: ${count(found.ready)} of ${shards(found.shards)}, ${count(found.pairs)} of up to ${count(found.of)} pairs${rate}`
    : found.error || `Measured ${count(found.ready)} of ${shards(found.shards)}`;
  const button = fresh && more ? h("button", { type: "button", id: "show-more", click: more }, `${shards(fresh)} more: show ${fresh === 1 ? "it" : "them"}`) : null;
  const rest = found.state === "enough" ? [h("button", { type: "button", id: "measure-more", click: () => ask("more").catch((error) => say(error.message, true)) }, "Measure more"),
    h("button", { type: "button", id: "copy-rest", title: found.command, click: () => copy(found.command, "Command") }, "Copy the command for the rest")] : [];
  const key = JSON.stringify([text, fresh, found.state, failed]);
  if (key === line.dataset.key) return;
  line.dataset.key = key;
  fill(line, h("progress", { max: found.shards, value: found.ready, "aria-label": "Shards measured", hidden: !busy }), h("span", null, text), button, rest,
    failed.length ? h("details", null, h("summary", null, `${shards(failed.length)} failed`), failed.slice(0, 20).map(([name, reason]) => h("p", null, foreign(name), ": ", foreign(reason)))) : null);
}
