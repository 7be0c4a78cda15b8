// node get.js HOST:PORT JOB STATE KEY    prints the value of one key, as JSON where JSON can say it.

import { Client, QueryError } from "./client.js";
import { contentsOf, shown } from "./shown.js";

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
