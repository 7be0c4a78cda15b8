// node follow.js HOST:PORT JOB STATE [POSITION]    prints the state and then its committed changes, a batch on a line.

import { Client, QueryError } from "./client.js";
import { contentsOf, shown } from "./shown.js";

const [address, job, state, position = null] = process.argv.slice(2);
const colon = address?.lastIndexOf(":") ?? -1;
if (state === undefined || colon < 1) {
  console.error("usage: node follow.js HOST:PORT JOB STATE [POSITION]");
  process.exit(2);
}
const client = new Client(address.slice(0, colon), Number(address.slice(colon + 1)));
try {
  const batches = client.subscribe(job, state, { position });
  for await (const { changes, ...batch } of batches) {
    const told = changes.map(({ view, ...change }) => (view ? { ...change, value: contentsOf(view) } : change));
    console.log(JSON.stringify({ ...batch, changes: told, position: batches.position }, shown));
  }
} catch (error) {
  console.error(error instanceof QueryError ? error.message : error);
  process.exitCode = 1;
} finally {
  client.close();
}
