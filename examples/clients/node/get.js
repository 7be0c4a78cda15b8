// node get.js HOST:PORT JOB STATE KEY    prints the value of one key, as JSON where JSON can say it.

import { Client, QueryError, ReadOnlyMap, ReadOnlyMapState, ReadOnlyValueState } from "./client.js";

const [address, job, state, text] = process.argv.slice(2);
const colon = address?.lastIndexOf(":") ?? -1;
if (text === undefined || colon < 1) {
  console.error("usage: node get.js HOST:PORT JOB STATE KEY");
  process.exit(2);
}
const client = new Client(address.slice(0, colon), Number(address.slice(colon + 1)));
try {
  const described = (await client.states(job)).find((entry) => entry.name === state);
  const isNumber = described?.key_types.length === 1 && described.key_types[0] === "bigint";
  const view = await client.get(job, state, isNumber ? BigInt(text) : text);
  console.log(view === null ? "nothing" : JSON.stringify(contentsOf(view), shown));
} catch (error) {
  console.error(error instanceof QueryError ? error.message : error);
  process.exitCode = 1;
} finally {
  client.close();
}

function contentsOf(view) {
  if (view instanceof ReadOnlyMapState) return new ReadOnlyMap(view.entries());
  return view instanceof ReadOnlyValueState ? view.value() : view.get();
}

function shown(_, value) {
  if (typeof value === "bigint") return value.toString();
  if (value instanceof Uint8Array) return Buffer.from(value).toString("hex");
  if (!(value instanceof ReadOnlyMap)) return value;
  return Object.fromEntries([...value].map(([key, entry]) => [typeof key === "string" ? key : JSON.stringify(key, shown), entry]));
}
