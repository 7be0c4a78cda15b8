// Places on the page as URL hashes: #/job/state?begins=TEXT&show=top, #/job/state/key columns?namespace=JSON.
// So every place can be linked to.

import { parse, stringify } from "./format.js";

/** The hash of a place. `columns` are those of a key; the void namespace is left out. */
export function hashOf(job, state, columns = [], namespace = null) {
  const names = [job, state].filter((name) => name !== undefined);
  const path = [...names, ...columns.map(columnText)].map(encodeURIComponent).join("/");
  return `#/${path}${namespace === null ? "" : `?namespace=${encodeURIComponent(stringify(namespace))}`}`;
}

/** The hash of a state with what is searched for, and as what its entries are shown. */
export function stateHash(job, state, { begins, show }) {
  const options = new URLSearchParams(Object.entries({ begins, show }).filter(([, value]) => value));
  return hashOf(job, state) + (options.size ? `?${options}` : "");
}

/** The text of a key's column, as the gateway reads it in a query. */
export function columnText(column) {
  return typeof column === "string" ? column : stringify(column);
}

/** The columns of a key in an answer: one key column is given alone. */
export function columnsOf(key) {
  return Array.isArray(key) ? key : [key];
}

/** The place of a hash: `job`, `state` and `columns` may be undefined. A hash that nobody could have made is the start. */
export function placeOf(hash) {
  try {
    const [path, options = ""] = hash.replace(/^#\/?/, "").split("?");
    const [job, state, ...columns] = path.split("/").map(decodeURIComponent);
    const given = new URLSearchParams(options);
    const namespace = given.get("namespace");
    return {
      job: job || undefined,
      state: job && state ? state : undefined,
      columns: job && state && columns.length ? columns : undefined,
      namespace: namespace === null ? null : parse(namespace),
      begins: given.get("begins") ?? "",
      show: given.get("show") ?? "",
    };
  } catch {
    return { namespace: null };
  }
}
