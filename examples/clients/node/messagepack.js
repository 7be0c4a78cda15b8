// MessagePack as the protocol needs it.
//
// Writing is the library's. Reading is done here, because a client has to tell apart what the library's decoder folds
// together: maps whose keys are not strings, floats that are whole from integers, and text that is not UTF-8.

import { ExtData, decodeTimestampToTimeSpec, encode as libraryEncode } from "@msgpack/msgpack";

const UTF8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const DEEPEST = 1000;

/** The bytes are not MessagePack. */
export class MessagePackError extends Error {}

/** A float, where the difference to an integer matters. */
export class Float {
  constructor(value) {
    this.value = value;
  }
}

/** An extension type as it came. */
export class Extension {
  constructor(code, data) {
    this.code = code;
    this.data = data;
    Object.freeze(this);
  }
}

/** Extension -1: seconds since 1970 in UTC, and nanoseconds. A Date would lose all below a millisecond. */
export class Timestamp {
  constructor({ sec, nsec }) {
    this.seconds = sec;
    this.nanoseconds = nsec;
    Object.freeze(this);
  }

  toDate() {
    return new Date(this.seconds * 1000 + this.nanoseconds / 1e6);
  }
}

/** The bytes of a value; integers are numbers, or BigInts of up to 64 bits. */
export function encode(value) {
  return libraryEncode(shortened(value), { useBigInt64: true });
}

// With `useBigInt64` the library writes numbers beyond 32 bits as floats, and every BigInt in nine bytes.
function shortened(value) {
  if (Array.isArray(value)) return value.map(shortened);
  if (value instanceof Extension) return new ExtData(value.code, value.data);
  if (value !== null && typeof value === "object" && Object.getPrototypeOf(value) === Object.prototype) {
    return Object.fromEntries(Object.entries(value).map(([name, entry]) => [name, shortened(entry)]));
  }
  if (typeof value === "bigint" && value >= -(2n ** 31n) && value < 2n ** 32n) return Number(value);
  if (Number.isInteger(value) && (value < -(2 ** 31) || value >= 2 ** 32)) return BigInt(value);
  return value;
}

function integer(found) {
  return found >= BigInt(Number.MIN_SAFE_INTEGER) && found <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(found) : found;
}

/**
 * The one value that the bytes are, or a MessagePackError.
 *
 * Integers come as numbers, or as BigInts beyond 2^53. `map(entries)`, `list(elements)`, `float(number)` and
 * `extension(code, data)` make the values for a map, an array, a float and an extension type.
 */
export function decode(bytes, make = {}) {
  const reader = new Reader(bytes, { ...PLAIN, ...make });
  const value = reader.value(0);
  if (reader.at !== bytes.length) throw new MessagePackError("there are bytes after the value");
  return value;
}

const PLAIN = {
  map: (entries) => entries,
  list: (elements) => elements,
  float: (number) => number,
  extension: (code, data) => new Extension(code, data),
};

/** The time of an extension -1. */
export function timestamp(data) {
  return new Timestamp(decodeTimestampToTimeSpec(data));
}

class Reader {
  constructor(bytes, make) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.make = make;
    this.at = 0;
  }

  value(depth) {
    if (depth > DEEPEST) throw new MessagePackError("too deep");
    const first = this.view.getUint8(this.skip(1));
    if (first < 0x80) return first;
    if (first >= 0xe0) return first - 0x100;
    if (first < 0x90) return this.map(first & 0x0f, depth);
    if (first < 0xa0) return this.list(first & 0x0f, depth);
    if (first < 0xc0) return this.text(first & 0x1f);
    switch (first) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.copy(this.size(first - 0xc4));
      case 0xc7: case 0xc8: case 0xc9: return this.extension(this.size(first - 0xc7));
      case 0xca: return this.make.float(this.view.getFloat32(this.skip(4)));
      case 0xcb: return this.make.float(this.view.getFloat64(this.skip(8)));
      case 0xcc: return this.view.getUint8(this.skip(1));
      case 0xcd: return this.view.getUint16(this.skip(2));
      case 0xce: return this.view.getUint32(this.skip(4));
      case 0xcf: return integer(this.view.getBigUint64(this.skip(8)));
      case 0xd0: return this.view.getInt8(this.skip(1));
      case 0xd1: return this.view.getInt16(this.skip(2));
      case 0xd2: return this.view.getInt32(this.skip(4));
      case 0xd3: return integer(this.view.getBigInt64(this.skip(8)));
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return this.extension(1 << (first - 0xd4));
      case 0xd9: case 0xda: case 0xdb: return this.text(this.size(first - 0xd9));
      case 0xdc: case 0xdd: return this.list(this.size(first - 0xdb), depth);
      case 0xde: case 0xdf: return this.map(this.size(first - 0xdd), depth);
      default: throw new MessagePackError(`no value begins with ${first}`);
    }
  }

  /** Where the next so many bytes begin; they are behind the reader then. */
  skip(count) {
    const start = this.at;
    if (count > this.bytes.length - start) throw new MessagePackError("the value is cut");
    this.at += count;
    return start;
  }

  slice(count) {
    const start = this.skip(count);
    return this.bytes.subarray(start, start + count);
  }

  /** The same of the caller's own: `slice` of a Buffer would share its memory. */
  copy(count) {
    return new Uint8Array(this.slice(count));
  }

  /** A length of 1, 2 or 4 bytes. */
  size(power) {
    if (power === 0) return this.view.getUint8(this.skip(1));
    return power === 1 ? this.view.getUint16(this.skip(2)) : this.view.getUint32(this.skip(4));
  }

  text(length) {
    try {
      return UTF8.decode(this.slice(length));
    } catch (error) {
      throw error instanceof MessagePackError ? error : new MessagePackError("a string is not UTF-8");
    }
  }

  list(length, depth) {
    // Each element has a byte at least: what is announced beyond that is not allocated.
    if (length > this.bytes.length - this.at) throw new MessagePackError("an array is cut");
    return this.make.list(Array.from({ length }, () => this.value(depth + 1)));
  }

  map(length, depth) {
    if (length > this.bytes.length - this.at) throw new MessagePackError("a map is cut");
    return this.make.map(Array.from({ length }, () => [this.value(depth + 1), this.value(depth + 1)]));
  }

  extension(length) {
    const code = this.view.getInt8(this.skip(1));
    return this.make.extension(code, this.copy(length));
  }
}
