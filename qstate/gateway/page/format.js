// Values, keys and figures as text. Nothing here knows the document.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const SMALL = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const EXACT = new Intl.NumberFormat("en", { maximumFractionDigits: 20 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
/** What stands for a text without a character: something to see, and to click on. */
const EMPTY_TEXT = '""';
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
/** What stands for a figure that is not known. */
export const UNKNOWN = "–";

export function whole(value) {
  return value === null || value === undefined ? UNKNOWN : WHOLE.format(value);
}

/** "1 key", "2 keys". */
export function plural(count, noun) {
  return `${WHOLE.format(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function number(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  const size = Math.abs(Number(value));
  return size > 0 && size < 0.1 ? SMALL.format(value) : NUMBER.format(value);
}

/** A number of a value: all of its digits, because keys may differ in the last one. */
export function exact(value) {
  const size = Math.abs(Number(value));
  // EXACT has 20 digits after the point: three zeros, and the 17 that a double has at most.
  if (typeof value === "number" && size > 0 && (size < 1e-4 || size >= 1e21)) return String(value);
  return EXACT.format(value);
}

/** For an axis, where there is little room. */
export function short(value) {
  return Math.abs(value) >= 1_000_000 ? SHORT.format(value) : number(value);
}

export function bytes(size) {
  if (size === null || size === undefined) return UNKNOWN;
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : WHOLE.format(size)} ${UNITS[unit]}`;
}

/** Seconds, as a length of time. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const size = Math.abs(seconds);
  if (size < 1) return `${Math.round(seconds * 1000)} ms`;
  if (size < 120) return `${seconds.toFixed(size < 10 ? 1 : 0)} s`;
  if (size < 7200) return `${Math.round(seconds / 60)} min`;
  if (size < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${WHOLE.format(seconds / 86_400)} d`;
}

/** A time in seconds since 1970, in UTC: watermarks are not of the reader's place. */
export function instant(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const at = new Date(seconds * 1000);
  return Number.isNaN(at.getTime()) ? String(seconds) : at.toISOString().slice(0, 19).replace("T", " ");
}

/** A time of day of the reader's clock. */
export function clock(ms) {
  const at = new Date(ms);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** What hides or reorders text. Variants of a character, which emoji have, do neither. */
const HIDDEN = /(?![\p{VS}\u200c\u200d])[\p{DI}\u007f-\u009f\u2028\u2029\ufff9-\ufffb]/gu;
/** Joiners that join nothing. Between visible characters they have a meaning, as in Persian and in emoji; between two
 * of ASCII they have none. */
const STRAY =
  /(?<![^\p{C}\p{Z}])[\u200c\u200d]|[\u200c\u200d](?![^\p{C}\p{Z}])|(?<=[!-~])[\u200c\u200d](?=[!-~])/gu;

/** Text with what has no shape made visible, and cut when it is very long. */
export function visible(text, most = 300) {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(/[\u0000-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(STRAY, "\ufffd")
    .replace(HIDDEN, "\ufffd");
}

/** JSON of a value whose large integers are BigInt, as `parse` makes them. */
export function stringify(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(stringify).join(",")}]`;
  if (value !== null && typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}:${stringify(one)}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

/** JSON.parse that keeps integers beyond 2^53 exact, where the browser gives a number's source. */
export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_name, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? BigInt(context.source)
      : value,
  );
}

/** A namespace or a whole value on one line: the outermost fields or elements without the marks of JSON. */
export function oneLine(value, most = 300) {
  if (value === undefined) return UNKNOWN;
  if (Array.isArray(value)) return visible(value.slice(0, most).map(inner).join(", "), most) || "empty";
  if (value === null || typeof value !== "object") return visible(inner(value), most) || EMPTY_TEXT;
  const fields = Object.entries(value).slice(0, most);
  return visible(fields.map(([name, one]) => `${name}: ${inner(one)}`).join(", "), most) || "empty";
}

function inner(value) {
  if (typeof value === "string") return value;
  return typeof value === "number" || typeof value === "bigint" ? exact(value) : stringify(value);
}

/** A key on one line: columns are divided by a middle dot. Numbers are as they are, because they may be names. */
export function keyText(key) {
  const columns = Array.isArray(key) ? key : [key];
  return columns.map((one) => (typeof one === "string" ? visible(one) : visible(stringify(one))) || EMPTY_TEXT).join(" · ");
}
