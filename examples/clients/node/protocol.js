// Messages as bytes and back. No sockets: bytes in, messages out.
//
// Every message of the server is held to its table in the protocol reference (docs/reference/protocol.md, whose rules
// are cited by their ids); one that breaks it raises BrokenProtocol, and the connection has to end (P-BROKEN-2).

import { InvalidArgument, QueryError } from "./failures.js";
import { Extension, Float, MessagePackError, decode, encode } from "./messagepack.js";

export const [HELLO, WELCOME, GET, VALUES, LOCATE, LOCATION, DESCRIBE, DESCRIPTION, PING, PONG, FAILURE] =
  Array(11).keys();
export const [SCAN, PAGE, POLL, CHANGES] = [13, 14, 15, 16];
export const [GET_PART, PART] = [18, 19];
export const VERSIONS = [1];
export const BEFORE_THE_WELCOME = 65536;

const MAX_UINT32 = 2 ** 32 - 1;
const MAX_FRAME = 2 ** 28 - 1;
const BIGINT_STOP = 2n ** 63n;
const MAX_NAME = 255;
/** One past the last key group of any state. */
export const MAX_GROUPS = 32768;
/** A timestamp, and the texts of a date and of a decimal. */
const MAX_COLUMNS = 64;
const KEY_EXTENSIONS = new Set([-1, 3, 4]);

/** The server broke a rule of the protocol. */
export class BrokenProtocol extends Error {}

/** Cuts a stream of bytes into payloads, however it comes (P-FRAME-4). */
export class FrameReader {
  #bytes = Buffer.alloc(0);
  maxFrame = BEFORE_THE_WELCOME;

  /** Yields each payload that is whole. */
  *feed(chunk) {
    this.#bytes = this.#bytes.length ? Buffer.concat([this.#bytes, chunk]) : chunk;
    while (this.#bytes.length >= 4) {
      const length = this.#bytes.readUInt32BE();
      if (length > this.maxFrame) throw new BrokenProtocol(`a frame of ${length} bytes is over ${this.maxFrame}`);
      if (this.#bytes.length < 4 + length) return;
      const payload = this.#bytes.subarray(4, 4 + length);
      this.#bytes = this.#bytes.subarray(4 + length);
      yield payload;
    }
  }
}

/** The frame of a message. Raises QueryError TOO_LARGE. */
export function frame(elements, maxFrame = BEFORE_THE_WELCOME) {
  const payload = encode(elements);
  if (payload.length > maxFrame) {
    throw new QueryError("TOO_LARGE", new Map([["limit", maxFrame]]), `a request of ${payload.length} bytes`);
  }
  const bytes = Buffer.alloc(4 + payload.length);
  bytes.writeUInt32BE(payload.length);
  bytes.set(payload, 4);
  return bytes;
}

/** Raises InvalidArgument unless it is a key (P-KEY-1, P-KEY-2). */
export function checkKey(key) {
  if (Array.isArray(key) && key.length < 2) throw new InvalidArgument("a key of one column is the bare value");
  checkColumns(Array.isArray(key) ? key : [key]);
}

function checkColumns(columns) {
  if (columns.every(isColumn)) return;
  throw new InvalidArgument("a key's columns are text, Uint8Array, booleans, integers of 64 bits, or Extensions of dates, timestamps and decimals");
}

function isColumn(column) {
  return (
    (typeof column === "string" && column.isWellFormed()) ||
    column instanceof Uint8Array ||
    typeof column === "boolean" ||
    (column instanceof Extension && KEY_EXTENSIONS.has(column.code)) ||
    Number.isSafeInteger(column) ||
    (typeof column === "bigint" && column >= -BIGINT_STOP && column < BIGINT_STOP)
  );
}

function isKey(key) {
  return Array.isArray(key) ? key.length >= 2 && key.length <= MAX_COLUMNS && key.every(isColumn) : isColumn(key);
}

/** Raises InvalidArgument unless it is null, text or bytes, or an array of the first columns. */
export function checkPrefix(prefix) {
  if (prefix === null || prefix instanceof Uint8Array || (typeof prefix === "string" && prefix.isWellFormed())) return;
  if (!Array.isArray(prefix) || prefix.length < 1 || prefix.length > MAX_COLUMNS) {
    throw new InvalidArgument("a prefix is text, a Uint8Array, or an array of the first columns");
  }
  checkColumns(prefix);
}

/** Raises InvalidArgument unless it is the first key group and one past the last. */
export function checkGroups(groups) {
  const [start, stop] = Array.isArray(groups) ? groups : [];
  if (!(isInteger(start, 0, MAX_GROUPS) && isInteger(stop, start + 1, MAX_GROUPS))) {
    throw new InvalidArgument(`key groups are [first, one past the last] of 0 to ${MAX_GROUPS}`);
  }
}

/** Whether two places are the same: [namespace, key], or null. */
export function isSamePlace(one, other) {
  return Buffer.from(encode(one)).equals(encode(other));
}

/** Whether a map key comes after another one: by the bytes of their shortest form. */
export function isAfter(one, other) {
  return Buffer.compare(Buffer.from(encode(one)), Buffer.from(encode(other))) > 0;
}

/** Raises InvalidArgument unless it is the name of a job or a state. */
export function checkName(name) {
  if (!isName(name) || !name.isWellFormed()) throw new InvalidArgument("a name is text of 1 to 255 characters");
}

/** Raises InvalidArgument unless it is an integer from 0: an epoch, or milliseconds. */
export function checkDemand(demand) {
  const sound = typeof demand === "bigint" ? demand >= 0n && demand < BIGINT_STOP : Number.isSafeInteger(demand) && demand >= 0;
  if (!sound) throw new InvalidArgument("an epoch and milliseconds are integers from 0");
}

/** The message of a payload. Raises BrokenProtocol. */
export function read(payload) {
  let fields;
  try {
    // Floats are wrapped, so that every number is an integer (P-MSG-6).
    fields = decode(payload, { float: (value) => new Float(value), map: mapOf });
  } catch (error) {
    if (error instanceof MessagePackError) throw new BrokenProtocol(error.message);
    throw error;
  }
  need(Array.isArray(fields) && fields.length >= 2, "a payload is an array of a type and an id");
  const [type, id, ...rest] = fields;
  need(isInteger(type, 0, MAX_UINT32) && isInteger(id, 0, MAX_UINT32), "a message begins with its type and its id");
  const check = CHECKS.get(type);
  need(check !== undefined, `a server sends no message of type ${type}`);
  if (!SIZES.has(type)) return { type, id, ...check(rest, id) };
  const [elements, attributes] = withoutAttributes(rest, SIZES.get(type));
  return { type, id, attributes, ...check(elements, id) };
}

/** The fields of an answer, and the attributes with which it may end: none that must not be ignored (P-ATTR-1). */
function withoutAttributes(fields, size) {
  need(fields.length === size || fields.length === size + 1, "the number of fields of an answer");
  const attributes = fields.length > size ? fields[size] : new Map();
  need(attributes instanceof Map, "attributes are a map");
  for (const [name, value] of attributes) need(name.startsWith("?") && isScalar(value), `the attribute ${name}`);
  return [fields.slice(0, size), attributes];
}

/** How many fields the answers have. */
const SIZES = new Map([
  [VALUES, 3],
  [PAGE, 9],
  [CHANGES, 6],
  [PART, 6],
  [LOCATION, 3],
  [DESCRIPTION, 1],
  [PONG, 0],
  [FAILURE, 2],
]);
const CHECKS = new Map([
  [WELCOME, welcome],
  [VALUES, values],
  [PAGE, page],
  [CHANGES, changes],
  [PART, part],
  [LOCATION, location],
  [DESCRIPTION, description],
  [PONG, () => ({})],
  [FAILURE, failed],
]);

function welcome([version, server, features, maxFrame, maxKeys], id) {
  // Elements after these, and features that are not known, are ignored (P-HELLO-5).
  need(id === 0, "Welcome has the id 0");
  need(isInteger(version, 1, 65535) && isText(server) && isNames(features, 32), "Welcome");
  need(isInteger(maxFrame, 4096, MAX_FRAME) && isInteger(maxKeys, 1, 2 ** 20), "the limits of the Welcome");
  return { version, maxFrame, maxKeys };
}

function values(fields) {
  const [epochs, results, fingerprint] = fields;
  need(Array.isArray(epochs) && Array.isArray(results), "Values");
  need(epochs.length === results.length, "Values have one epoch for each result");
  results.forEach((result, index) => {
    const isCode = isInteger(result, 1, 65535);
    need(isCode || result === null || result instanceof Uint8Array, "a result is binary, nil or a failure code");
    need(isCode ? epochs[index] === -1 : isEpoch(epochs[index]), "an epoch");
  });
  const needless = results.every((result) => isInteger(result, 1, 65535));
  need(isText(fingerprint) && (needless || fingerprint !== ""), "the fingerprint of the description");
  return { epochs, results, fingerprint };
}

function page([epoch, fingerprint, view, nextGroup, after, selected, namespaces, keys, results]) {
  need(isEpoch(epoch) && isName(fingerprint), "the epoch and fingerprint of a page");
  need(isBinary(view, 64), "a view");
  need(isInteger(nextGroup, 0, MAX_GROUPS) && isPlace(after), "the place of the next page");
  need(isInteger(selected, 0, Infinity), "the number of selected keys");
  need(Array.isArray(keys) && keys.every(isKey) && [0, selected].includes(keys.length), "the keys of a page");
  need(Array.isArray(namespaces) && namespaces.every(isNamespace), "the namespaces of a page");
  need(Array.isArray(results) && results.every(isResult), "the results of a page");
  for (const column of [namespaces, results]) need([0, keys.length].includes(column.length), "one of each for each key");
  return { epoch, fingerprint, view, nextGroup, after, selected, namespaces, keys, results };
}

function part([epoch, fingerprint, result, after, total, version]) {
  need(isEpoch(epoch) && isName(fingerprint), "the epoch and fingerprint of a part");
  need(result === null || result instanceof Uint8Array, "a part is binary or nil");
  need(after === null || isKey(after), "the place of the next page");
  need(isInteger(total, 0, Infinity) || (typeof total === "bigint" && total > 0n && total < BIGINT_STOP), "a total");
  need(isBinary(version, 64), "a version");
  return { epoch, fingerprint, result, after, total: Number(total), version };
}

/** By operation, whether its changes have map keys, and whether they have values. */
const COLUMNS = [null, [false, true], [false, false], [true, true], [true, false], [false, true]];

function changes([fingerprint, stopGroup, nextEpoch, position, committed, runs]) {
  need(isName(fingerprint) && isInteger(stopGroup, 1, MAX_GROUPS), "the fingerprint and the key groups of changes");
  need(isInteger(nextEpoch, 0, Infinity) && isInteger(committed, -1, Infinity), "the epochs of changes");
  need(isBinary(position, 64) && Array.isArray(runs) && runs.length <= 65536, "Changes");
  let least = 0;
  const most = nextEpoch - (position.length ? 0 : 1);
  for (const run of runs) {
    need(Array.isArray(run) && run.length === 6, "a run has six elements");
    const [epoch, operation, namespace, keys, mapKeys, values] = run;
    need(isInteger(epoch, least, most) && isInteger(operation, 1, 5) && isNamespace(namespace), "a run");
    need(Array.isArray(keys) && keys.every(isKey), "the keys of a run");
    [mapKeys, values].forEach((column, at) => {
      need(COLUMNS[operation][at] ? column?.length === keys.length : column === null, "the columns of a run");
    });
    need(mapKeys === null || (Array.isArray(mapKeys) && mapKeys.every(isKey)), "the map keys of a run");
    need(values === null || (Array.isArray(values) && values.every((value) => value instanceof Uint8Array)), "values");
    least = epoch;
  }
  return { fingerprint, stopGroup, nextEpoch, position, committed, runs };
}

function isResult(result) {
  return result instanceof Uint8Array || isInteger(result, 1, 65535);
}

function isNamespace(namespace) {
  return namespace === null || isKey(namespace);
}

function isPlace(place) {
  return place === null || (Array.isArray(place) && place.length === 2 && isNamespace(place[0]) && isKey(place[1]));
}

function isBinary(value, most) {
  return value instanceof Uint8Array && value.length <= most;
}

function location(fields) {
  const [state, maxParallelism, owners] = fields;
  need(Array.isArray(owners), "Location");
  need(isInteger(maxParallelism, 1, 32768), "max_parallelism");
  let free = 0;
  for (const owner of owners) {
    need(Array.isArray(owner) && owner.length >= 5, "an owner");
    const [start, stop, host, port, stateId] = owner;
    need(isInteger(start, free, maxParallelism - 1) && isInteger(stop, start + 1, maxParallelism), "key groups");
    need(isName(host) && isInteger(port, 1, 65535), "the address of an owner");
    need(stateId instanceof Uint8Array && stateId.length === 16, "a state id");
    free = stop;
  }
  return { state: stateOf(state), maxParallelism };
}

function description(fields) {
  const [entries] = fields;
  need(Array.isArray(entries) && entries.length <= 32768, "Description");
  return { entries: entries.map((entry) => (entry instanceof Map && !entry.has("kind") ? jobOf(entry) : stateOf(entry))) };
}

function failed(fields) {
  const [code, details] = fields;
  need(isInteger(code, 1, 65535) && details instanceof Map, "Failure");
  for (const value of details.values()) need(isScalar(value), "a detail is a scalar");
  return { code, details: unwrapped(details) };
}

function jobOf(entry) {
  need(describes(entry) && isName(entry.get("job")), "a job");
  return Object.fromEntries(entry);
}

/** The description of a state; names that this client does not know are ignored (P-DESC-1). */
function stateOf(entry) {
  need(describes(entry), "a state is a map of scalars, or arrays of them");
  for (const name of ["name", "kind", "serializer", "fingerprint"]) need(isName(entry.get(name)), name);
  for (const name of ["key_types", "capabilities"]) need(isNames(entry.get(name), 64), name);
  need(entry.get("namespace_types") === null || isNames(entry.get("namespace_types"), 64), "namespace_types");
  const version = entry.get("serializer_version");
  need(typeof version === "bigint" ? version > 0n : Number.isInteger(version) && version > 0, "serializer_version");
  need(typeof entry.get("value_type") === "string", "value_type");
  const known = [
    ...["name", "kind", "serializer", "serializer_version", "key_types", "namespace_types", "value_type"],
    ...["capabilities", "fingerprint"],
  ];
  return Object.fromEntries(known.map((name) => [name, entry.get(name)]));
}

function describes(entry) {
  return (
    entry instanceof Map &&
    [...entry.values()].every((value) => isScalar(value) || (Array.isArray(value) && value.every(isScalar)))
  );
}

// A map of a message: at most 64 names, all different (P-MSG-7).
function mapOf(entries) {
  const map = new Map(entries);
  need(map.size === entries.length && map.size <= 64 && [...map.keys()].every(isName), "the names of a map");
  return map;
}

function unwrapped(map) {
  return new Map([...map].map(([name, value]) => [name, value instanceof Float ? value.value : value]));
}

function isScalar(value) {
  if (value instanceof Float) return Number.isFinite(value.value);
  if (typeof value === "bigint") return value >= -BIGINT_STOP && value < BIGINT_STOP;
  return value === null || ["string", "boolean", "number"].includes(typeof value);
}

function isEpoch(value) {
  return (typeof value === "bigint" && value > 0n && value < BIGINT_STOP) || isInteger(value, -1, Infinity);
}

function isInteger(value, low, high) {
  return typeof value === "number" && value >= low && value <= high;
}

// Characters are code points, not the units of 16 bits that `length` counts.
function isText(value) {
  return typeof value === "string" && (value.length <= MAX_NAME || [...value].length <= MAX_NAME);
}

function isName(value) {
  return isText(value) && value !== "";
}

function isNames(value, most) {
  return Array.isArray(value) && value.length <= most && value.every(isName);
}

function need(sound, what) {
  if (!sound) throw new BrokenProtocol(what);
}
