// The driver through which the conformance suite uses this client: one JSON object per line, see
// docs/reference/client-driver.md.
//
//     qstate-conformance client -- node driver.js

import readline from "node:readline";

import {
  Client,
  ClosedError,
  Extension,
  InvalidArgument,
  QueryError,
  ReadOnlyListState,
  ReadOnlyMap,
  ReadOnlyMapState,
  ReadOnlyValueState,
  Text,
  Timestamp,
  UnreadableState,
  UnsupportedOperation,
} from "./client.js";

const clients = new Map();
const views = new Map();
const serializers = { "conformance.reversed": (bytes) => Buffer.from(bytes).reverse().toString() };

const FEATURES = ["async", "batch", "demands", "parts", "retry", "scan", "serializer", "subscribe"];

const operations = {
  hello: () => ({ protocol: 1, client: "qstate example, Node", features: FEATURES }),

  open({ host, port, token, timeout_ms: timeoutMs }) {
    const number = clients.size + 1;
    clients.set(number, new Client(host, port, { token: untagged(token), serializers, timeoutMs }));
    return { client: number };
  },

  async get({ client, job, state, key, keep, ...more }) {
    return entry(await clients.get(client).get(job, state, untagged(key), options(more)), keep);
  },

  async get_many({ client, job, state, keys, ...more }) {
    const found = await clients.get(client).getMany(job, state, keys.map(untagged), options(more));
    return { results: found.map((view) => entry(view)) };
  },

  async get_part({ client, job, state, key, part, map_keys: mapKeys, after, limit, start, stop, ...more }) {
    const asked = clients.get(client);
    const named = [job, state, untagged(key)];
    const chosen = options(more);
    if (part === "size") return { size: await asked.getSize(...named, chosen) };
    if (part === "page") {
      const page = await asked.getPage(...named, { ...chosen, after: untagged(after ?? null), limit });
      return { ...entry(page.view), after: tagged(page.after) };
    }
    if (part === "entries") return entry(await asked.getEntries(...named, mapKeys.map(untagged), chosen));
    if (part === "slice") return entry(await asked.getSlice(...named, { ...chosen, start, stop }));
    return entry(await asked.getLarge(...named, chosen));
  },

  async scan({ client, job, state, prefix, namespace, key_groups: keyGroups, limit, show = "values", ...more }) {
    const asked = clients.get(client);
    const chosen = { ...options(more), prefix: untagged(prefix ?? null), namespace: untagged(namespace), keyGroups, limit };
    if (show === "count") return { entries: [], count: await asked.count(job, state, chosen) };
    const entries = [];
    const answer = () => ({ entries, count: entries.length });
    const found = asked.scan(job, state, { ...chosen, values: show === "values" });
    try {
      for await (const { key, namespace: space, view, error } of found) {
        const told = { key: tagged(key), namespace: tagged(space) };
        if (view) Object.assign(told, { epoch: view.epoch, value: tagged(contentsOf(view)) });
        entries.push(error ? { ...told, error: { code: codeOf(error), message: error.message } } : told);
      }
    } catch (error) {
      return { ...answer(), error: { code: codeOf(error), message: `${error.name}: ${error.message}` } };
    }
    return answer();
  },

  async subscribe({ client, job, state, prefix, namespace, from_epoch: from, until_epoch: until, timeout_ms: timeoutMs }) {
    const position = from === undefined || from === null ? null : JSON.stringify([[0, 32768, from]]);
    const chosen = { prefix: untagged(prefix ?? null), namespace: untagged(namespace), position, waitMs: 1000, timeoutMs };
    const found = clients.get(client).subscribe(job, state, chosen);
    const batches = [];
    const isOver = () => JSON.parse(found.position).every(([, , given]) => given !== null && given > until);
    try {
      for await (const { snapshot, epoch, changes } of found) {
        batches.push({ epoch, snapshot, changes: changes.map(toldChange) });
        if (isOver()) break;
      }
    } catch (error) {
      return { batches, error: { code: codeOf(error), message: `${error.name}: ${error.message}` } };
    }
    return { batches };
  },

  async describe({ client, job, timeout_ms: timeoutMs }) {
    const asked = clients.get(client);
    return job === null ? { jobs: await asked.jobs({ timeoutMs }) } : { states: await asked.states(job, { timeoutMs }) };
  },

  mutate({ view: number }) {
    const view = views.get(number);
    return { attempts: [...attempts(view)], value: tagged(contentsOf(view)) };
  },

  close({ client }) {
    clients.get(client).close();
    return {};
  },
};

const lines = readline.createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  const { id, op, ...fields } = JSON.parse(line);
  let answer;
  try {
    answer = { id, ok: await operations[op](fields) };
  } catch (error) {
    answer = { id, error: { code: codeOf(error), message: `${error.name}: ${error.message}` } };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
});
lines.on("close", () => clients.forEach((client) => client.close()));

const CHANGES = { "delete entry": "remove_entry", "put entry": "put_entry", append: "add" };

function toldChange({ operation, key, namespace, view, mapKey, value, error }) {
  const told = { change: CHANGES[operation] ?? operation, key: tagged(key), namespace: tagged(namespace) };
  if (mapKey !== undefined) told.map_key = tagged(mapKey);
  if (view) told.value = tagged(contentsOf(view));
  else if (operation === "put entry") told.value = tagged(value);
  if (error) throw error;
  return told;
}

function codeOf(error) {
  if (error instanceof QueryError) return error.code;
  if (error instanceof ClosedError) return "CLOSED";
  if (error instanceof UnreadableState) return "UNREADABLE";
  return error instanceof InvalidArgument ? "INVALID" : "CRASHED";
}

function options({ namespace, isolation, timeout_ms: timeoutMs, ...demands }) {
  return {
    namespace: namespace == null ? null : untagged(namespace),
    isolation: isolation ?? "live",
    minEpoch: demands.min_epoch ?? null,
    maxStalenessMs: demands.max_staleness_ms ?? null,
    timeoutMs,
  };
}

function entry(view, keep = false) {
  if (view === null) return { found: false };
  const told = { found: true, epoch: view.epoch, value: tagged(contentsOf(view)) };
  if (keep) {
    told.view = views.size + 1;
    views.set(told.view, view);
  }
  return told;
}

function contentsOf(view) {
  if (view instanceof ReadOnlyMapState) return new ReadOnlyMap(view.entries());
  return view instanceof ReadOnlyValueState ? view.value() : view.get();
}

// Keys and namespaces, and what is none of them.
function untagged(value) {
  if (Array.isArray(value)) return value.map(untagged);
  if (value == null || typeof value !== "object") return value;
  if ("$hex" in value) return Buffer.from(value.$hex, "hex");
  if ("$integer" in value) return BigInt(value.$integer);
  if ("$ext" in value) return new Extension(value.$ext[0], Buffer.from(value.$ext[1], "hex"));
  if ("$map" in value) return new Map(value.$map);
  return Number(value.$float);
}

function tagged(value) {
  if (Array.isArray(value)) return value.map(tagged);
  if (value instanceof Uint8Array) return { $hex: Buffer.from(value).toString("hex") };
  if (value instanceof ReadOnlyMap) return { $map: [...value].map(([key, part]) => [tagged(key), tagged(part)]) };
  if (value instanceof Timestamp) return { $timestamp: [value.seconds, value.nanoseconds] };
  if (value instanceof Text) return { [`$${value.type}`]: value.text };
  if (value instanceof Extension) return { $ext: [value.code, Buffer.from(value.data).toString("hex")] };
  if (typeof value === "bigint") return { $integer: value.toString() };
  if (typeof value === "number" && !Number.isFinite(value)) {
    return { $float: Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf" };
  }
  return value;
}

const OF_VIEWS = ["clear", "update", "add", "addAll", "put", "putAll", "remove"];
const OF_ARRAYS = {
  push: (value) => value.push(1),
  pop: (value) => value.pop(),
  shift: (value) => value.shift(),
  unshift: (value) => value.unshift(1),
  splice: (value) => value.splice(0, 1),
  reverse: (value) => value.reverse(),
  sort: (value) => value.sort(),
  fill: (value) => value.fill(0),
  "item assignment": (value) => { value[0] = "changed"; },
  length: (value) => { value.length = 0; },
};
const ORDERING = new Set(["reverse", "sort"]);
const OF_MAPS = {
  set: (value) => value.set("k", 1),
  delete: (value) => value.delete([...value.keys()][0]),
  clear: (value) => value.clear(),
};

function* attempts(view) {
  for (const name of OF_VIEWS) if (name in view) yield attempt("the view", name, () => view[name]("k", 1));
  yield attempt("the view", "epoch", () => { view.epoch = 7; });
  const inner = view instanceof ReadOnlyMapState ? view.values() : contentsOf(view);
  yield* attemptsOn(inner, view instanceof ReadOnlyListState ? "the elements" : "the contents");
}

function* attemptsOn(value, where) {
  if (value instanceof Uint8Array && value.length) {
    // Cannot refuse, and is the caller's own copy.
    yield { ...attempt(where, "item assignment", () => { value[0] ^= 0xff; }), copy: true };
  } else if (Array.isArray(value)) {
    for (const [index, part] of value.entries()) yield* attemptsOn(part, `${where}[${index}]`);
    for (const [name, act] of Object.entries(OF_ARRAYS)) {
      // Some change nothing in an array that is too short, and so have nothing to refuse.
      if (value.length >= (ORDERING.has(name) ? 2 : 1)) yield attempt(where, name, () => act(value));
    }
  } else if (value instanceof ReadOnlyMap) {
    for (const part of value.values()) yield* attemptsOn(part, `${where} entry`);
    for (const [name, act] of Object.entries(value.size ? OF_MAPS : {})) yield attempt(where, name, () => act(value));
  }
}

function attempt(on, name, act) {
  try {
    act();
  } catch (error) {
    // Frozen arrays refuse with TypeError.
    if (error instanceof UnsupportedOperation || error instanceof TypeError) return { on, do: name, refused: true };
    throw error;
  }
  return { on, do: name, refused: false };
}
