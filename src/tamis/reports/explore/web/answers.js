// What the page does with answers, whether a server gives them (ask.js) or the page itself (static.js).

/** Facts, the bytes they came with, and the place where their arrays begin. */
export function framed(bytes) {
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

/** The alternatives in a text that captions are searched for. */
export const choices = (text) => text.split("|").map((part) => part.trim()).filter(Boolean);
