// Requests to the server. The token is part of this file's URL.

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

/** Facts, the bytes they came with, and the place where their arrays begin. */
function framed(bytes) {
  const start = 4 + new DataView(bytes).getUint32(0, true);
  return [JSON.parse(new TextDecoder().decode(bytes.slice(4, start))), bytes, start];
}

/** Calls `work` with the newest argument only, one call at a time, so that a slider waits for each answer. */
export function newest(work) {
  let running = null;
  let next = null;
  const run = async (argument) => {
    try {
      return await work(argument);
    } finally {
      running = null;
      if (next) {
        const { argument: later, done, fail } = next;
        next = null;
        running = run(later);
        running.then(done, fail);
      }
    }
  };
  return (argument) => {
    if (!running) return (running = run(argument));
    next?.done(undefined); // a newer question has taken its place
    return new Promise((done, fail) => (next = { argument, done, fail }));
  };
}
