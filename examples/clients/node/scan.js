// Scans: page after page, until there are no more keys. A scan holds one page.

import { InvalidArgument, failure } from "./failures.js";
import { decode, encode } from "./messagepack.js";
import { MAX_GROUPS, isSamePlace } from "./protocol.js";

const NO_VIEW = new Uint8Array();

export class Scan {
  #ask;
  #selection;
  #entries = null;

  /**
   * Where a later scan begins: at the first page of which not every entry was given. So a scan that continues from a
   * cursor may give some entries again, and leaves none out.
   */
  cursor;
  /** The epoch of the entries that come now. Each owner of the state has its own (P-SCAN-8). */
  epoch = null;

  /** `ask` gives the answer to a request, and what reads its values. Raises InvalidArgument. */
  constructor(ask, { cursor, ...selection }) {
    this.#ask = ask;
    this.#selection = selection;
    this.cursor = cursor ?? cursorOf(selection.keyGroups[0], null);
    placeOf(this.cursor);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  next() {
    this.#entries ??= this.#all();
    return this.#entries.next();
  }

  /** Ends the scan, as leaving a loop does. */
  return() {
    this.#entries ??= this.#all();
    return this.#entries.return();
  }

  async *#all() {
    for await (const page of this.pages()) {
      this.epoch = page.epoch;
      yield* page.entries;
    }
  }

  /** The pages, each with its `entries`, and whether it `isLast` of its owner, if that is known. */
  async *pages() {
    const { prefix, namespaces, keyGroups, limit, options } = this.#selection;
    let [start, after] = placeOf(this.cursor);
    let left = limit;
    let view = NO_VIEW;
    const requestOf = (most) => {
      const request = { namespaces, prefix, start, stop: keyGroups[1], after, view, options: { ...options } };
      if (most !== null) request.options.limit = most;
      return { ...request, fits: (page) => isAnswer(request, page) };
    };
    try {
      while (start < keyGroups[1] && left !== 0) {
        const { answer, known } = await this.#ask(requestOf(left));
        [start, after, view] = [answer.nextGroup, answer.after, answer.view];
        if (left !== null) left -= answer.selected;
        yield { ...answer, entries: entriesOf(answer, known), isLast: view.length === 0 };
        this.cursor = cursorOf(start, after);
      }
    } finally {
      // Whoever leaves early needs the view no longer; the server notices by itself, later.
      if (view.length) this.#ask(requestOf(0)).catch(() => {});
    }
  }
}

function cursorOf(group, after) {
  return Buffer.from(encode([group, after])).toString("base64url");
}

function placeOf(cursor) {
  try {
    const [group, after] = decode(Buffer.from(cursor, "base64url"));
    if (Number.isInteger(group) && group >= 0 && group <= MAX_GROUPS) return [group, after];
  } catch {
    // As below.
  }
  throw new InvalidArgument("a cursor is that of an earlier scan");
}

function* entriesOf({ epoch, keys, namespaces, results }, { makeView }) {
  for (const [at, key] of keys.entries()) {
    const entry = { key, namespace: namespaces[at] ?? null, view: null };
    const result = results[at];
    if (result instanceof Uint8Array) entry.view = makeView(result, epoch);
    else if (result !== undefined) entry.error = failure(result, new Map());
    yield entry;
  }
}

/** Whether a page belongs to the request (P-SCAN-11). */
function isAnswer({ start, stop, after, options }, page) {
  const { show = "values", limit = null, min_epoch: least = null } = options;
  if (page.results.length !== (show === "values" ? page.keys.length : 0)) return false;
  if (show === "count" ? page.keys.length : page.keys.length !== page.selected) return false;
  if (limit !== null && page.selected > limit) return false;
  if (least !== null && page.selected && page.epoch < least) return false;
  if (page.nextGroup < start || page.nextGroup > stop) return false;
  if (page.nextGroup === stop) return page.after === null;
  return limit === 0 || page.nextGroup > start || !isSamePlace(page.after, after);
}
