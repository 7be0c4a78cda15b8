// Read-only views of results: one class for each kind of state.
//
// A result is a copy (P-GET-10). Every operation that looks like a change of the state exists, so that nobody wonders,
// and always refuses. Contents are read-only at every depth: arrays are frozen, maps are `ReadOnlyMap`. Binary data cannot
// be frozen in JavaScript, so a view reads its bytes anew each time that it is asked: whatever a caller does to a
// Uint8Array is done to the caller's own copy.

import { UnreadableState, UnsupportedOperation } from "./failures.js";
import { Extension, decode, timestamp } from "./messagepack.js";

function refuse() {
  throw new UnsupportedOperation("results of queries are read-only; only the job's own functions change its state");
}

/** A map whose keys are compared by what they hold: text, numbers, binary and arrays of these. */
export class ReadOnlyMap {
  #entries = new Map();

  constructor(entries) {
    for (const [key, value] of entries) this.#entries.set(identity(key), [key, value]);
    Object.freeze(this);
  }

  get size() {
    return this.#entries.size;
  }

  get(key) {
    return this.#entries.get(identity(key))?.[1];
  }

  has(key) {
    return this.#entries.has(identity(key));
  }

  *keys() {
    for (const [key] of this.#entries.values()) yield key;
  }

  *values() {
    for (const [, value] of this.#entries.values()) yield value;
  }

  *entries() {
    for (const [key, value] of this.#entries.values()) yield [key, value];
  }

  [Symbol.iterator]() {
    return this.entries();
  }

  set() {
    refuse();
  }

  delete() {
    refuse();
  }

  clear() {
    refuse();
  }
}

function identity(key) {
  if (Array.isArray(key)) return `[${key.map(identity).join(",")}]`;
  if (key instanceof Uint8Array) return `x${Buffer.from(key).toString("hex")}`;
  if (key instanceof ReadOnlyMap) return `{${[...key].map(identity).join(",")}}`;
  if (key instanceof Extension) return `e${key.code}${identity(key.data)}`;
  if (typeof key === "string") return JSON.stringify(key);
  return typeof key === "object" && key !== null ? JSON.stringify(key) : `${typeof key === "boolean" ? "b" : ""}${key}`;
}

/** A value that Python has and JavaScript does not, by its text: "datetime", "date" or "decimal". */
export class Text {
  constructor(type, text) {
    this.type = type;
    this.text = text;
    Object.freeze(this);
  }

  toString() {
    return this.text;
  }
}

const TEXTS = new Map([[2, "datetime"], [3, "date"], [4, "decimal"]]);

function extension(code, data) {
  if (code === -1) return timestamp(data);
  if (code === 1) return contents(data);
  return TEXTS.has(code) ? new Text(TEXTS.get(code), Buffer.from(data).toString()) : new Extension(code, data);
}

const READ_ONLY = { map: (entries) => new ReadOnlyMap(entries), list: Object.freeze, extension };

/** The read-only value of MessagePack bytes. */
function contents(bytes) {
  try {
    return decode(bytes, READ_ONLY);
  } catch (error) {
    if (error instanceof UnsupportedOperation) throw error;
    throw new UnreadableState(`the answer cannot be read: ${error.message}`);
  }
}

class ReadOnlyState {
  #bytes;
  #loads;

  constructor(bytes, epoch, loads) {
    this.#bytes = bytes;
    this.#loads = loads;
    this.epoch = epoch;
    Object.freeze(this);
  }

  clear() {
    refuse();
  }

  /** The value that the whole answer is. */
  _value() {
    return this.#loads ? this.#loaded(new Uint8Array(this.#bytes)) : contents(this.#bytes);
  }

  /** The array or map that the answer is, whose parts are bytes of the serializer unless that is msgpack. */
  _container(isContainer, eachPart) {
    const found = contents(this.#bytes);
    if (!isContainer(found)) throw new UnreadableState("the answer is of another kind than the state");
    return this.#loads ? eachPart(found, (part) => this.#loaded(part)) : found;
  }

  #loaded(bytes) {
    if (!(bytes instanceof Uint8Array)) throw new UnreadableState("the answer does not hold the serializer's bytes");
    return this.#loads(bytes);
  }
}

export class ReadOnlyValueState extends ReadOnlyState {
  value() {
    return this._value();
  }

  update() {
    refuse();
  }
}

export class ReadOnlyReducingState extends ReadOnlyState {
  get() {
    return this._value();
  }

  add() {
    refuse();
  }
}

export class ReadOnlyAggregatingState extends ReadOnlyState {
  get() {
    return this._value();
  }

  add() {
    refuse();
  }
}

export class ReadOnlyListState extends ReadOnlyState {
  get() {
    return this._container(Array.isArray, (elements, load) => Object.freeze(elements.map(load)));
  }

  add() {
    refuse();
  }

  addAll() {
    refuse();
  }

  update() {
    refuse();
  }
}

export class ReadOnlyMapState extends ReadOnlyState {
  #map() {
    const isMap = (found) => found instanceof ReadOnlyMap;
    return this._container(isMap, (map, load) => new ReadOnlyMap([...map].map(([key, part]) => [key, load(part)])));
  }

  get(key) {
    return this.#map().get(key);
  }

  contains(key) {
    return this.#map().has(key);
  }

  isEmpty() {
    return this.#map().size === 0;
  }

  keys() {
    return Object.freeze([...this.#map().keys()]);
  }

  values() {
    return Object.freeze([...this.#map().values()]);
  }

  entries() {
    return Object.freeze([...this.#map().entries()].map(Object.freeze));
  }

  put() {
    refuse();
  }

  putAll() {
    refuse();
  }

  remove() {
    refuse();
  }
}

const VIEWS = {
  value: ReadOnlyValueState,
  list: ReadOnlyListState,
  map: ReadOnlyMapState,
  reducing: ReadOnlyReducingState,
  aggregating: ReadOnlyAggregatingState,
};

/**
 * What reads a state: `makeView(bytes, epoch)`, and `load(bytes)` for one entry of a map.
 *
 * Raises UnreadableState for what this client cannot read.
 */
export function readersOf({ name, kind, serializer }, serializers) {
  if (!Object.hasOwn(VIEWS, kind)) throw new UnreadableState(`the state ${name} is of the unknown kind ${kind}`);
  const loads = serializer === "msgpack" ? null : serializers[serializer];
  if (loads === undefined) {
    throw new UnreadableState(`the state ${name} is written by the serializer ${serializer}; pass one of that name`);
  }
  return { makeView: (bytes, epoch) => new VIEWS[kind](bytes, epoch, loads), load: loads ?? contents };
}
