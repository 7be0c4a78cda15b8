// Subscriptions: the committed state, and then its committed changes, epoch by epoch (P-POLL-9, P-POLL-10, P-POLL-12).
//
// The key groups of a state are in parts, one for each owner, and each part has its own epoch. A part without an epoch is
// scanned first: the scan shows one epoch of its owner. From the epoch after it on, polls ask for changes. A part whose
// changes are compacted has no epoch again. A poll may find that a part has several owners by now: the part is split.

import { InvalidArgument } from "./failures.js";
import { MAX_GROUPS } from "./protocol.js";
import { Scan } from "./scan.js";

const AT_ITS_BEGINNING = new Uint8Array();
const OPERATIONS = [null, "put", "delete", "put entry", "delete entry", "append"];

/**
 * An asynchronous iterator of batches: `{ snapshot, keyGroups, epoch, changes }`.
 *
 * A batch has all changes of one epoch, for the key groups from the first to one before the second of `keyGroups`. With
 * `snapshot`, it has their whole state as of the epoch, in place of all that came before for them; it is held in memory.
 * A change is `{ operation, key, namespace }` and, by its operation,
 *
 *     "put"           `view`: the key has this value          "delete"        the key has none any more
 *     "put entry"     `mapKey`, `value`: an entry of a map    "delete entry"  `mapKey`
 *     "append"        `view`: elements at the end of a list
 *
 * A change of a snapshot whose value alone has failed has an `error` in place of a view.
 */
export class Subscription {
  #asker;
  #selection;
  #parts;
  #history = null;
  #batches = null;

  constructor(asker, selection, position) {
    this.#asker = asker;
    this.#selection = selection;
    const [start, stop] = selection.keyGroups;
    this.#parts = position === null ? [newPart(start, stop, null)] : partsOf(position);
  }

  /** Text with which a later subscription to the same keys continues after the batches that were given. */
  get position() {
    return JSON.stringify(this.#parts.map(({ start, stop, given }) => [start, stop, given]));
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  next() {
    this.#batches ??= this.#all();
    return this.#batches.next();
  }

  /** Ends the subscription, as leaving a loop does. */
  return() {
    this.#batches ??= this.#all();
    return this.#batches.return();
  }

  async *#all() {
    const { maxParallelism } = await this.#asker.known();
    // A poll needs an owner, and there is none for key groups that the state does not have.
    this.#parts = this.#parts.filter((part) => part.start < maxParallelism);
    for (const part of this.#parts) part.stop = Math.min(part.stop, maxParallelism);
    const polls = new Map();
    while (this.#parts.length) {
      for (const part of [...this.#parts]) if (part.given === null) yield* this.#snapshot(part);
      for (const part of this.#parts) if (!polls.has(part)) polls.set(part, this.#polled(part));
      const [part, found] = await Promise.race(polls.values());
      polls.delete(part);
      if (!this.#parts.includes(part)) continue;
      if (found === null) this.#replace(part, [newPart(part.start, part.stop, null)]);
      else yield* this.#taken(part, found);
    }
  }

  /** The state of a part: a batch for each of its owners. */
  async *#snapshot(part) {
    const selection = { ...this.#selection, keyGroups: [part.start, part.stop], cursor: null };
    let changes = [];
    let rest = part;
    for await (const page of new Scan(this.#asker.page, selection).pages()) {
      for (const { view, error, ...entry } of page.entries) {
        changes.push({ operation: "put", ...entry, ...(error ? { error } : { view }) });
      }
      // The last page of an owner has no view (P-SCAN-6).
      if (page.nextGroup < rest.stop && !(page.isLast && page.after === null)) continue;
      const done = newPart(rest.start, page.nextGroup, page.epoch + 1);
      const left = page.nextGroup < rest.stop ? [newPart(page.nextGroup, rest.stop, null)] : [];
      this.#replace(rest, [done, ...left]);
      [rest] = left;
      yield { snapshot: true, keyGroups: [done.start, done.stop], epoch: page.epoch, changes };
      changes = [];
    }
  }

  /** The part, and the answer to its next poll; null for a part whose changes are compacted. */
  #polled(part) {
    const { namespaces, prefix } = this.#selection;
    const { start, stop, epoch, place } = part;
    const fits = (changes) =>
      changes.stopGroup > start && changes.stopGroup <= stop && changes.nextEpoch >= epoch && !(changes.runs[0]?.[0] < epoch);
    const found = this.#asker.poll({ namespaces, prefix, start, stop, epoch, place, fits }).then(
      (answer) => [part, answer],
      (error) => (error.code === "COMPACTED" ? [part, null] : Promise.reject(error)),
    );
    // The race hands the first failure out; later ones change nothing.
    found.catch(() => {});
    return found;
  }

  *#taken(part, { answer, known }) {
    const { stopGroup, nextEpoch, position, runs, attributes } = answer;
    const history = attributes.get("?history") ?? this.#history;
    if (this.#history !== null && history !== this.#history) {
      // The job has begun again: what was given is of other epochs.
      this.#history = null;
      for (const one of [...this.#parts]) this.#replace(one, [newPart(one.start, one.stop, null)]);
      return;
    }
    this.#history = history;
    if (stopGroup < part.stop) {
      const rest = newPart(stopGroup, part.stop, part.given);
      if (part.place.length) {
        // The place was of an owner with more key groups: what came of the epoch is not complete for any of them now.
        this.#replace(part, [newPart(part.start, stopGroup, part.given), rest]);
        return;
      }
      const first = newPart(part.start, stopGroup, part.given);
      this.#replace(part, [first, rest]);
      part = first;
    }
    part.held.push(...runs.flatMap((run) => [...changesOf(run, known)]));
    [part.epoch, part.place] = [nextEpoch, position];
    // An epoch is given when all of it has come (P-POLL-10).
    const complete = part.held.filter(({ epoch }) => epoch < nextEpoch);
    part.held = part.held.filter(({ epoch }) => epoch >= nextEpoch);
    const byEpoch = new Map();
    for (const { epoch, ...change } of complete) byEpoch.set(epoch, [...(byEpoch.get(epoch) ?? []), change]);
    for (const [epoch, changes] of byEpoch) {
      part.given = epoch + 1;
      yield { snapshot: false, keyGroups: [part.start, part.stop], epoch, changes };
    }
    part.given = nextEpoch;
  }

  #replace(part, others) {
    this.#parts.splice(this.#parts.indexOf(part), 1, ...others);
  }
}

/** `given`: every change of earlier epochs was given; null: nothing yet. `epoch` and `place`: where to poll. */
function newPart(start, stop, given) {
  return { start, stop, given, epoch: given, place: AT_ITS_BEGINNING, held: [] };
}

function partsOf(position) {
  try {
    const parts = JSON.parse(position);
    const sound = parts.every(
      ([start, stop, given]) =>
        [start, stop, given ?? 0].every((number) => Number.isSafeInteger(number) && number >= 0) &&
        start < stop &&
        stop <= MAX_GROUPS,
    );
    if (sound && parts.length) return parts.map((part) => newPart(...part));
  } catch {
    // As below.
  }
  throw new InvalidArgument("a position is that of an earlier subscription");
}

function* changesOf([epoch, number, namespace, keys, mapKeys, values], { makeView, load }) {
  const operation = OPERATIONS[number];
  for (const [at, key] of keys.entries()) {
    const change = { epoch, operation, key, namespace };
    if (mapKeys) change.mapKey = mapKeys[at];
    if (operation === "put entry") change.value = load(values[at]);
    else if (values) change.view = makeView(values[at], epoch);
    yield change;
  }
}
