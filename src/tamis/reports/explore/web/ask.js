// Requests to the server. The token is part of this file's URL.

import { framed } from "./answers.js";

export { newest } from "./answers.js";

const HERE = new URL("..", import.meta.url);

export const imageUrl = (kind, row) => new URL(`image/${kind}/${row}`, HERE).href;

export const ask = (name, about = {}) => post(`ask/${name}`, JSON.stringify(about));

/** Uploads an image to search by; the answer contains its key. */
export const send = (file) => post("near", file);

const later = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

/** Fetches, with one retry if no answer came: browsers abort requests when the machine's network changes. */
async function fetched(path, body) {
  const once = () => fetch(new URL(path, HERE), { method: "POST", body });
  try {
    // Not repeated: a second save would find its name taken, a second undo would undo two changes.
    return await (["ask/save", "ask/undo_tags"].includes(path) ? once() : once().catch(() => later(300).then(once)));
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
