// How the command lines show views and values: as JSON where JSON can say it.

import { ReadOnlyMap, ReadOnlyMapState, ReadOnlyValueState } from "./views.js";

/** The contents of a view. */
export function contentsOf(view) {
  if (view instanceof ReadOnlyMapState) return new ReadOnlyMap(view.entries());
  return view instanceof ReadOnlyValueState ? view.value() : view.get();
}

/** What `JSON.stringify` is to write in place of a value. */
export function shown(_, value) {
  if (typeof value === "bigint") return value.toString();
  if (value instanceof Uint8Array) return Buffer.from(value).toString("hex");
  if (!(value instanceof ReadOnlyMap)) return value;
  return Object.fromEntries([...value].map(([key, entry]) => [typeof key === "string" ? key : JSON.stringify(key, shown), entry]));
}
