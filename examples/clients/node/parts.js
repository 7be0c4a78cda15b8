// Parts of one value: what a GetPart asks for, whether a Part answers it, and a value that is put together from pieces.

import { InvalidArgument, QueryError } from "./failures.js";
import { checkKey, isAfter } from "./protocol.js";

const ALL = 2n ** 63n - 1n;
/** How often the reading of a value in pieces begins, if it changes meanwhile (P-PART-4). */
const TRIES = 5;

/** Some entries of a map. */
export function entriesPart(mapKeys) {
  if (!Array.isArray(mapKeys) || mapKeys.length === 0) throw new InvalidArgument("map keys are an array of one or more");
  mapKeys.forEach(checkKey);
  return part("entries", { mapKeys });
}

/** The entries of a map after a map key. */
export function pagePart({ after = null, limit = 1000 }) {
  if (after !== null) checkKey(after);
  if (!(Number.isSafeInteger(limit) && limit > 0)) throw new InvalidArgument("a limit is a number of entries from 1");
  return part("page", { after, length: limit });
}

/** The elements of a list from one position to another. */
export function slicePart({ start = 0, stop = null }) {
  for (const position of [start, stop ?? 0]) {
    if (!(Number.isSafeInteger(position) && position >= 0)) throw new InvalidArgument("positions are integers from 0");
  }
  return part("slice", { start, length: stop === null ? ALL : Math.max(0, stop - start) });
}

/** The number of elements or entries. */
export function sizePart() {
  return part("size", {});
}

function part(name, { mapKeys = [], after = null, start = 0, length = 0 }) {
  return { name, mapKeys, after, start, length };
}

/** Whether a Part answers the request (P-PART-8). */
export function answers(message, { name, after, start, length }, leastEpoch) {
  if (leastEpoch !== null && message.epoch < leastEpoch) return false;
  if (message.after !== null && !(name === "page" && (after === null || isAfter(message.after, after)))) return false;
  if (name !== "bytes") return true;
  const found = message.result?.length ?? 0;
  const rest = Math.max(0, message.total - start);
  return found <= rest && found <= length && (found > 0 || rest === 0);
}

/** The whole answer of a Get, of pieces that `ask(part)` gives, all of one version; null without a value. */
export async function joined(ask) {
  for (let tries = 0; tries < TRIES; tries++) {
    const pieces = [];
    let start = 0;
    let first = null;
    for (;;) {
      const { answer, known } = await ask(part("bytes", { start, length: ALL }));
      if (answer.result === null) return null;
      first ??= answer;
      if (!isSameVersion(answer, first)) break;
      pieces.push(answer.result);
      start += answer.result.length;
      if (start >= answer.total) return known.makeView(Buffer.concat(pieces), first.epoch);
    }
  }
  throw new QueryError("CONCURRENT_MODIFICATION", new Map([["tries", TRIES]]), "the value changes while it is read");
}

function isSameVersion(one, other) {
  return (
    Buffer.from(one.version).equals(Buffer.from(other.version)) &&
    one.fingerprint === other.fingerprint &&
    one.total === other.total
  );
}
