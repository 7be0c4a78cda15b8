// A client of qstate's wire protocol: reads the state of running jobs by key, through a client proxy.
//
//     const client = new Client("127.0.0.1", 9069);
//     const view = await client.get("flights", "lastTemp", "JFK");
//     console.log(view?.value());
//     client.close();

import { isIPv4 } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

import { Connection } from "./connection.js";
import { ClosedError, InvalidArgument, QueryError, failure } from "./failures.js";
import { answers, entriesPart, joined, pagePart, sizePart, slicePart } from "./parts.js";
import * as protocol from "./protocol.js";
import { checkDemand, checkGroups, checkKey, checkName, checkPrefix } from "./protocol.js";
import { Scan } from "./scan.js";
import { Subscription } from "./subscription.js";
import { readersOf } from "./views.js";

export { ClosedError, InvalidArgument, QueryError, UnreadableState, UnsupportedOperation } from "./failures.js";
export { Extension, Timestamp } from "./messagepack.js";
export * from "./views.js";

/** The failure code of values that no known description can read. */
const UNKNOWN_STATE_ID = 4;
/** How often a page or a poll is sent when its connection breaks, and how long a client waits before (P-SCAN-12). */
const TRIES = 3;
const PAUSE_MS = 100;
const FIRST_WAIT_MS = 5;
const LONGEST_WAIT_MS = 200;
/** The most bytes of the changes that one poll asks for. */
const LARGEST_CHANGES = 16 * 1024 * 1024;
/** Timers count milliseconds in 31 bits: one of more ends at once. */
const LONGEST_TIMEOUT_MS = 2 ** 31 - 1;

/** Whether connections to this host never leave the machine. */
function isLoopback(host) {
  return host === "localhost" || host === "::1" || (isIPv4(host) && host.startsWith("127."));
}

export class Client {
  #host;
  #port;
  #token;
  #serializers;
  #timeoutMs;
  #connection = null;
  #closed = false;
  /**
   * The descriptions of states, by job and name: promises, so that those who ask at once share one look-up. Values
   * that have another fingerprint show that one is out of date (P-DESC-5).
   */
  #states = new Map();

  /**
   * `serializers` maps the name of a serializer to a function that reads its bytes. Nothing is sent yet.
   *
   * This client speaks no TLS, so a token goes to loopback only, unless `allowTokenWithoutTls` (P-HELLO-8).
   */
  constructor(host, port, { token = null, serializers = {}, timeoutMs = 10_000, allowTokenWithoutTls = false } = {}) {
    if (token !== null && !allowTokenWithoutTls && !isLoopback(host)) {
      throw new InvalidArgument(`the token would go to ${host} without TLS; see allowTokenWithoutTls`);
    }
    this.#host = host;
    this.#port = port;
    this.#token = typeof token === "string" ? Buffer.from(token) : token;
    this.#serializers = serializers;
    this.#timeoutMs = timeoutMs;
  }

  /**
   * The view of the key's value, or null when the state holds nothing for the key.
   *
   * A key is text, a Uint8Array, a boolean, an integer (number or BigInt), an Extension of a date, timestamp or decimal
   * as the protocol reference has it, or an array of these for several columns. Options:
   * `namespace`, `isolation` ("live" or "committed"), `minEpoch` (the answer is of this epoch or later),
   * `maxStalenessMs` (it lacks nothing that was committed longer ago) and `timeoutMs`. Raises QueryError,
   * InvalidArgument, UnreadableState, ClosedError.
   */
  async get(job, state, key, options = {}) {
    const [view] = await this.getMany(job, state, [key], options);
    return view;
  }

  /** The view, or null, of each key, in their order. Raises the error of the first key that failed. */
  async getMany(job, state, keys, { namespace = null, timeoutMs = this.#timeoutMs, ...how } = {}) {
    checkName(job);
    checkName(state);
    keys.forEach(checkKey);
    if (namespace !== null) checkKey(namespace);
    const options = optionsOf(how);
    const views = new Array(keys.length).fill(null);
    let open = [...keys.keys()];
    await this.#retrying(timeoutMs, async (deadline) => {
      if (open.length === 0) return;
      const { makeView, fingerprint } = await this.#look(job, state, deadline);
      const connection = await this.#connected(deadline);
      const asked = open;
      const query = { target: [job, state], namespace, options, fingerprint };
      const [epochs, results] = await ask(connection, query, asked.map((index) => keys[index]), deadline).catch(
        (error) => (error.code === "UNKNOWN_STATE_ID" ? this.#forget(job, state, error) : Promise.reject(error)),
      );
      // What has an answer is kept: only the other keys are asked for again (P-RETRY-4).
      open = asked.filter((_, at) => typeof results[at] === "number");
      asked.forEach((index, at) => {
        if (results[at] instanceof Uint8Array) views[index] = makeView(results[at], epochs[at]);
      });
      const errors = results.filter((result) => typeof result === "number").map((code) => failure(code, new Map()));
      if (errors.length) throw errors.find((error) => !error.mayPass) ?? errors[0];
    }).catch((error) => this.#forget(job, state, error));
    return views;
  }

  /** The view of those entries of the key's map that are there, or null. Options are those of `get`. */
  async getEntries(job, state, key, mapKeys, options = {}) {
    return viewOf(await this.#part(job, state, key, entriesPart(mapKeys), options));
  }

  /**
   * Some entries of the key's map: `{ view, after }`, where `after` is the map key after which the next page begins,
   * null after the last page. Options: `after`, `limit`, and those of `get`.
   */
  async getPage(job, state, key, { after, limit, ...options } = {}) {
    const found = await this.#part(job, state, key, pagePart({ after, limit }), options);
    return { view: viewOf(found), after: found.answer.after };
  }

  /** The view of the elements of the key's list from `start` to `stop`, or null. Options: these, and those of `get`. */
  async getSlice(job, state, key, { start, stop, ...options } = {}) {
    return viewOf(await this.#part(job, state, key, slicePart({ start, stop }), options));
  }

  /** The number of elements of the key's list or of entries of its map. Options are those of `get`. */
  async getSize(job, state, key, options = {}) {
    return (await this.#part(job, state, key, sizePart(), options)).answer.total;
  }

  /**
   * The view of the key's value, or null, read in pieces: for a value that is larger than a frame. `timeoutMs` is the
   * time limit of each piece. Raises CONCURRENT_MODIFICATION when the value has changed too often.
   */
  async getLarge(job, state, key, options = {}) {
    return joined((part) => this.#part(job, state, key, part, options));
  }

  /**
   * The keys of a state that have a value, page after page: an asynchronous iterator of `{ key, namespace, view }`.
   *
   * Options: `prefix` (text or bytes with which the first column begins, or an array of the first columns),
   * `namespace` (null for the void one; by default all), `keyGroups`, `limit`, `values` (false: each view is null),
   * `cursor` (of an earlier scan, which this one continues), those of `get`, and `timeoutMs`, the time limit of a page.
   * An entry has an `error` in place of a view when its value alone has failed. Raises, also later, what `get` raises.
   */
  scan(job, state, { values = true, cursor = null, timeoutMs = this.#timeoutMs, ...how } = {}) {
    return new Scan((request) => this.#page(job, state, request, timeoutMs), {
      ...selectionOf(job, state, how),
      options: { ...optionsOf(how), ...(values ? {} : { show: "keys" }) },
      cursor,
    });
  }

  /** How many keys `scan` would visit. */
  async count(job, state, { timeoutMs = this.#timeoutMs, ...how } = {}) {
    const selection = { ...selectionOf(job, state, how), options: { ...optionsOf(how), show: "count" }, cursor: null };
    const pages = new Scan((request) => this.#page(job, state, request, timeoutMs), selection).pages();
    let counted = 0;
    for await (const page of pages) counted += page.selected;
    return counted;
  }

  /**
   * The committed state, and then every committed change of it: a Subscription, an asynchronous iterator.
   *
   * Options: `prefix`, `namespace` and `keyGroups` as of `scan`; `position` (of an earlier subscription, which this one
   * continues), `waitMs` (how long the server may wait for a change) and `timeoutMs` (how much longer an answer may take).
   */
  subscribe(job, state, { position = null, waitMs = 10_000, timeoutMs = this.#timeoutMs, ...how } = {}) {
    const selection = { ...selectionOf(job, state, how), options: { isolation: "committed" }, cursor: null };
    const asker = {
      known: () => this.#retrying(timeoutMs, (deadline) => this.#look(job, state, deadline)),
      page: (request) => this.#page(job, state, request, timeoutMs),
      poll: (request) => this.#poll(job, state, request, waitMs, timeoutMs),
    };
    return new Subscription(asker, selection, position);
  }

  /** The names of the jobs that the proxy serves. */
  async jobs({ timeoutMs = this.#timeoutMs } = {}) {
    return (await this.#describe(null, timeoutMs)).map((entry) => entry.job);
  }

  /** The queryable states of a job. */
  async states(job, { timeoutMs = this.#timeoutMs } = {}) {
    checkName(job);
    return this.#describe(job, timeoutMs);
  }

  /** Close the connection. Who still waits gets ClosedError, and so does every later call. */
  close() {
    this.#closed = true;
    this.#connection?.end(new ClosedError("the client is closed"));
  }

  /** A part of a value, and what reads it. It is not sent again when its connection breaks (P-RETRY-5). */
  async #part(job, state, key, part, { namespace = null, timeoutMs = this.#timeoutMs, ...how }) {
    checkName(job);
    checkName(state);
    checkKey(key);
    if (namespace !== null) checkKey(namespace);
    const options = optionsOf(how);
    const { name, mapKeys, after, start, length } = part;
    const fieldsOf = (deadlineMs) =>
      [deadlineMs, [job, state], namespace, options, key, name, mapKeys, after, start, length];
    const fits = (message) => answers(message, part, options.min_epoch ?? null);
    const request = [protocol.GET_PART, protocol.PART, fieldsOf, fits];
    return this.#retrying(timeoutMs, (deadline) => this.#askOnce(job, state, request, deadline)).catch((error) =>
      this.#forget(job, state, error),
    );
  }

  /** A page, and what reads its values. `request` has the fields of a Scan, and `fits(page)` judges the answer. */
  async #page(job, state, { namespaces, prefix, start, stop, after, view, options, fits }, timeoutMs) {
    const { SCAN, PAGE } = protocol;
    const fieldsOf = (deadlineMs) =>
      [deadlineMs, [job, state], namespaces, prefix, start, stop, after, view, options];
    return this.#askAbout(job, state, [SCAN, PAGE, fieldsOf, fits], timeoutMs);
  }

  async #poll(job, state, { namespaces, prefix, start, stop, epoch, place, fits }, waitMs, timeoutMs) {
    const { POLL, CHANGES } = protocol;
    const fieldsOf = (deadlineMs) =>
      [deadlineMs, [job, state], namespaces, [], prefix, start, stop, epoch, place, waitMs, LARGEST_CHANGES];
    return this.#askAbout(job, state, [POLL, CHANGES, fieldsOf, fits], waitMs + timeoutMs);
  }

  /** The answer to a request about a state, and what reads its values; sent again when its connection breaks. */
  async #askAbout(job, state, request, timeoutMs) {
    for (let tries = 1; ; tries++) {
      try {
        return await this.#retrying(timeoutMs, (deadline) => this.#askOnce(job, state, request, deadline));
      } catch (error) {
        if (error.code !== "UNAVAILABLE" || tries === TRIES || this.#closed) this.#forget(job, state, error);
        await sleep(PAUSE_MS * tries);
      }
    }
  }

  async #askOnce(job, state, [type, answerType, fieldsOf, fits], deadline) {
    const known = await this.#look(job, state, deadline);
    const connection = await this.#connected(deadline);
    const answer = await connection.request(type, answerType, fieldsOf, deadline, fits);
    // The state has come back as another one: it has to be looked up again.
    if (answer.fingerprint !== known.fingerprint) this.#forget(job, state, failure(UNKNOWN_STATE_ID, new Map()));
    return { answer, known };
  }

  async #describe(job, timeoutMs) {
    const { DESCRIBE, DESCRIPTION } = protocol;
    return this.#retrying(timeoutMs, async (deadline) => {
      const connection = await this.#connected(deadline);
      const answer = await connection.request(DESCRIBE, DESCRIPTION, (deadlineMs) => [deadlineMs, job], deadline);
      return answer.entries;
    });
  }

  /** How to make the views of a state, and the fingerprint of its description; the proxy is asked once. */
  async #look(job, state, deadline) {
    const name = JSON.stringify([job, state]);
    let known = this.#states.get(name);
    if (known === undefined) {
      known = this.#locate(job, state, deadline);
      this.#states.set(name, known);
      known.catch(() => this.#states.delete(name));
    }
    return within(known, deadline);
  }

  async #locate(job, state, deadline) {
    const { LOCATE, LOCATION } = protocol;
    const connection = await this.#connected(deadline);
    const answer = await connection.request(LOCATE, LOCATION, (deadlineMs) => [deadlineMs, job, state], deadline);
    const { state: described, maxParallelism } = answer;
    return { ...readersOf(described, this.#serializers), fingerprint: described.fingerprint, maxParallelism };
  }

  /** A state that failed for good may be replaced by another: the client looks it up again. */
  #forget(job, state, error) {
    this.#states.delete(JSON.stringify([job, state]));
    throw error;
  }

  /** The connection, made when there is none, once it is welcome. */
  async #connected(deadline) {
    if (this.#closed) throw new ClosedError("the client is closed");
    if (this.#connection === null || this.#connection.ended) {
      this.#connection = new Connection(this.#host, this.#port, this.#token);
    }
    const connection = this.#connection;
    try {
      return await within(connection.ready, deadline);
    } catch (error) {
      // A server that says nothing in all the time that a request has is not waited for by the next one.
      if (!connection.ended) connection.end(error);
      throw error;
    }
  }

  /** Try until it works, the failure is fatal, or the next try would come after the deadline. */
  async #retrying(timeoutMs, attempt) {
    if (!(timeoutMs > 0 && timeoutMs < Infinity)) throw new InvalidArgument("timeoutMs is above zero and finite");
    const deadline = performance.now() + Math.min(timeoutMs, LONGEST_TIMEOUT_MS);
    for (let tries = 0; ; tries++) {
      try {
        return await attempt(deadline);
      } catch (error) {
        if (!(error instanceof QueryError) || !error.mayPass || this.#closed) throw error;
        // Longer each time, less a random part so that many clients do not come back at once (P-RETRY-2).
        const longest = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** Math.min(tries, 10));
        // A timer may fire a little early; the server must not be asked early (P-RETRY-3).
        const wait = Math.max(longest * (1 - Math.random() / 2), error.retryAfterMs + 1);
        if (performance.now() + wait >= deadline) throw error;
        await sleep(wait);
      }
    }
  }
}

/** The view of a part that has the form of a value, null if there is nothing in it. */
function viewOf({ answer, known }) {
  return answer.result === null ? null : known.makeView(answer.result, answer.epoch);
}

/** The epochs and results of keys, in their order; in several requests when one would be too large. */
async function ask(connection, query, keys, deadline) {
  const { GET, VALUES } = protocol;
  const { target, namespace, options } = query;
  if (keys.length <= connection.maxKeys) {
    try {
      const fieldsOf = (deadlineMs) => [deadlineMs, target, namespace, options, keys];
      const fits = (message) => message.results.length === keys.length && isReached(message, options);
      const { epochs, results, fingerprint } = await connection.request(GET, VALUES, fieldsOf, deadline, fits);
      if (fingerprint !== query.fingerprint && results.some((result) => typeof result !== "number")) {
        // The state has come back as another one: it has to be looked up again.
        throw failure(UNKNOWN_STATE_ID, new Map());
      }
      return [epochs, results];
    } catch (error) {
      if (error.code !== "TOO_LARGE" || keys.length === 1) throw error;
    }
  }
  const half = keys.length >> 1;
  const parts = [keys.slice(0, half), keys.slice(half)];
  const found = await Promise.all(parts.map((part) => ask(connection, query, part, deadline)));
  return [found.flatMap(([epochs]) => epochs), found.flatMap(([, results]) => results)];
}

/** Whether every result is of the epoch that was demanded, or of a later one. */
function isReached({ epochs, results }, { min_epoch: least = null }) {
  return least === null || epochs.every((epoch, at) => typeof results[at] === "number" || epoch >= least);
}

/** What a scan or a subscription selects. Raises InvalidArgument. */
function selectionOf(job, state, { prefix = null, namespace, keyGroups = [0, protocol.MAX_GROUPS], limit = null }) {
  checkName(job);
  checkName(state);
  checkPrefix(prefix);
  checkGroups(keyGroups);
  if (namespace !== undefined && namespace !== null) checkKey(namespace);
  if (limit !== null && !(Number.isSafeInteger(limit) && limit > 0)) throw new InvalidArgument("a limit is from 1");
  return { prefix, namespaces: namespace === undefined ? [] : [namespace], keyGroups, limit };
}

/** The options of a Get: what is as usual is left out. */
function optionsOf({ isolation = "live", minEpoch = null, maxStalenessMs = null }) {
  const options = isolation === "live" ? {} : { isolation };
  for (const [name, demand] of [["min_epoch", minEpoch], ["max_staleness_ms", maxStalenessMs]]) {
    if (demand === null) continue;
    checkDemand(demand);
    options[name] = demand;
  }
  return options;
}

/** What the promise gives, or DEADLINE_EXCEEDED. */
async function within(promise, deadline) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new QueryError("DEADLINE_EXCEEDED")), Math.max(0, deadline - performance.now()));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
