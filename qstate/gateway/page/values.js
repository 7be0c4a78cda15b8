// What a value is made of: the figures in it that can be drawn, and how a change of it is applied.

import { h } from "./dom.js";
import { exact, oneLine, stringify, visible } from "./format.js";

const MOST_MEASURES = 40;
const MOST_FIELDS = 500;

function isMap(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** The figures of a value: `[name, number]` pairs, the first of which is drawn unless the reader chooses another. */
export function measuresOf(value) {
  if (isNumber(value)) return [["value", Number(value)]];
  if (typeof value === "boolean") return [["value", Number(value)]];
  if (Array.isArray(value)) return [...listMeasures(value)];
  if (!isMap(value)) return [];
  const inside = Object.entries(value).filter(([, one]) => isNumber(one));
  const named = inside.slice(0, MOST_MEASURES).map(([name, one]) => [name, Number(one)]);
  return [...named, ["number of entries", Object.keys(value).length]];
}

function isNumber(value) {
  return typeof value === "number" || typeof value === "bigint";
}

function* listMeasures(list) {
  if (list.length && list.every(isNumber)) {
    const numbers = list.map(Number);
    yield ["last element", numbers.at(-1)];
    yield ["mean", numbers.reduce((sum, one) => sum + one, 0) / numbers.length];
  }
  yield ["number of elements", list.length];
}

/** One figure of these by its name, or undefined. */
export function measureOf(measures, name) {
  return measures.find(([one]) => one === name)?.[1];
}

/** The value of a state of this kind to show: of a map an object, also when it is pairs because not all keys are text. */
export function shownValue(kind, value) {
  return kind === "map" && Array.isArray(value) ? Object.fromEntries(value.map(([key, one]) => [nameOf(key), one])) : value;
}

/** A name for a key among keys that are not all text: JSON, but for text that cannot be taken for it. */
function nameOf(key) {
  try {
    if (typeof key === "string") JSON.parse(key);
  } catch {
    return key;
  }
  return stringify(key);
}

/** The value after a change. Undefined: no value. A change of a part needs the whole before it. */
export function changed(before, change) {
  switch (change.change) {
    case "put":
      return change.value;
    case "add":
      return [...(before ?? []), ...change.value];
    case "put_entry":
      return mapOf([...othersOf(before, change.map_key), [change.map_key, change.value]]);
    case "remove_entry":
      return mapOf(othersOf(before, change.map_key));
    default:
      return undefined;
  }
}

/** The entries of a map with other keys, as pairs. */
function othersOf(map, key) {
  const pairs = Array.isArray(map) ? map : Object.entries(map ?? {});
  const text = stringify(key);
  return pairs.filter(([other]) => stringify(other) !== text);
}

/** A map as the gateway gives it: an object if all keys are text, otherwise pairs. None without an entry. */
function mapOf(pairs) {
  if (!pairs.length) return undefined;
  return pairs.every(([key]) => typeof key === "string") ? Object.fromEntries(pairs) : pairs;
}

/** A whole value as an element: large when it is short, else by its fields or elements. */
export function valueElement(value) {
  if (isNumber(value)) return h("p", { class: "value" }, exact(value));
  if (isMap(value)) return fields(Object.entries(value).map(([name, one]) => [visible(name), one]));
  if (Array.isArray(value)) return fields(value.map((one, index) => [String(index), one]));
  return h("p", { class: "value text" }, typeof value === "string" && value ? visible(value, 20_000) : stringify(value));
}

function fields(pairs) {
  if (!pairs.length) return h("p", { class: "empty" }, "empty");
  const shown = pairs.slice(0, MOST_FIELDS).flatMap(([name, one]) => [
    h("dt", { class: "code" }, name),
    h("dd", { class: "code" }, oneLine(one, 2000)),
  ]);
  const rest = pairs.length - MOST_FIELDS;
  return h(
    "div",
    {},
    h("dl", { class: "fields", tabindex: pairs.length > 8 ? "0" : null, "aria-label": "Fields" }, shown),
    rest > 0 ? h("p", { class: "note" }, `and ${rest} more`) : null,
  );
}
