// Requests to the server. The token is part of this file's URL.

import { framed } from "./answers.js";

export { newest } from "./answers.js";

const HERE = new URL("..", import.meta.url);

let version = ""; // of a run that grows: rows have other numbers in each

export const shown = () => version;

export const show = (newer) => { version = newer; };

const versioned = (path) => new URL(version ? `${path}?v=${version}` : path, HERE);

export const imageUrl = (kind, row) => versioned(`image/${kind}/${row}`).href;

export const ask = (name, about = {}) => post(`ask/${name}`, JSON.stringify(about));

/** Uploads an image to search by; the answer contains its key. */
export const send = (file) => post("near", file);

const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Fetches, with one retry if no answer came: browsers abort requests when the machine's network changes. */
async function fetched(path, body) {
  const once = () => fetch(versioned(path), { method: "POST", body });
  try {
    // Not repeated: a second save would find its name taken, a second undo would undo two changes.
    return await (["ask/save", "ask/undo_tags", "ask/save_view", "ask/delete_view"].includes(path) ? once() : once().catch(() => later(300).then(once)));
  } catch {
    throw new Error("the server does not answer: is `tamis explore` still running?");
  }
}

async function post(path, body) {
  const answer = await fetched(path, body);
  if (answer.headers.get("content-type") === "application/octet-stream") return framed(await answer.arrayBuffer());
  if (!answer.headers.get("content-type")?.startsWith("application/json")) throw new Error(await answer.text());
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
