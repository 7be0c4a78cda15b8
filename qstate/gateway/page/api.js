// Talks to the gateway: requests, streams of server-sent events, and the token. It knows no view.

import { parse } from "./format.js";

const TIMEOUT_MS = 15_000;
/** The gateway sends a comment every 15 seconds at the latest: a stream that is silent for longer is dead. */
const SILENCE_MS = 40_000;
const LONGEST_EVENT = 32 << 20;
const WAITS_MS = [500, 1000, 2000, 5000];
const TOKEN = "qstate.token";

/** What the gateway says has failed (RFC 9457). `code` is a failure code of qstate, or LOST without an answer. */
export class Problem extends Error {
  constructor(body) {
    super(String(body.detail ?? body.title ?? "no reason given"));
    this.code = String(body.code ?? "INTERNAL");
    this.status = body.status ?? 0;
  }
}

function lost(error) {
  return new Problem({ code: "LOST", detail: `the gateway does not answer (${error.message ?? error})` });
}

/** The path of a state, of a job, or of all jobs. */
export function pathOf(...names) {
  const [job, state] = names.map(encodeURIComponent);
  if (state !== undefined) return `v1/jobs/${job}/states/${state}`;
  return job === undefined ? "v1/jobs" : `v1/jobs/${job}`;
}

/** A query string; arrays give a parameter several times, null leaves one out. */
export function query(parameters) {
  const pairs = Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const given = pairs.filter(([, value]) => value !== null && value !== undefined);
  return given.length ? `?${given.map((pair) => pair.map(encodeURIComponent).join("=")).join("&")}` : "";
}

/** Kept for this tab only, and gone when it closes. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => (text ? sessionStorage.setItem(TOKEN, text) : sessionStorage.removeItem(TOKEN)),
  /** Whether a header of a request can carry the text. */
  fits: (text) => {
    try {
      return new Headers(bearer(text)).has("Authorization");
    } catch {
      return false;
    }
  },
};

function bearer(text) {
  return text ? { Authorization: `Bearer ${text}` } : {};
}

/** Whether the gateway answers: "connecting", "live" or "lost". */
export const link = new EventTarget();
link.state = "connecting";

function report(state) {
  if (link.state === state) return;
  link.state = state;
  link.dispatchEvent(new Event("change"));
}

/** The JSON at a path. Throws `Problem`, or the reason of the signal. */
export async function get(path, signal) {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]);
  const answer = await request(path, {}, limited, signal);
  try {
    return parse(await answer.text());
  } catch (error) {
    signal.throwIfAborted();
    throw lost(error);
  }
}

async function request(path, headers, limited, signal) {
  let answer;
  try {
    const sent = { ...headers, ...bearer(token.get()) };
    answer = await fetch(path, { headers: sent, signal: limited, cache: "no-cache" });
  } catch (error) {
    signal.throwIfAborted();
    report("lost");
    throw lost(error);
  }
  report("live");
  if (answer.ok) return answer;
  throw new Problem(await answer.json().catch(() => ({ detail: `the gateway answers ${answer.status}` })));
}

/** Wait, or throw the reason of the signal. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal.addEventListener("abort", stop, { once: true });
  });
}

/** Aborted while nobody can see the page. */
let hidden = new AbortController();

function look() {
  if (document.hidden) hidden.abort(new Error("hidden"));
  else if (hidden.signal.aborted) hidden = new AbortController();
}

document.addEventListener("visibilitychange", look);
look();

/** Wait until the page can be seen, or throw the reason of the signal. */
function untilSeen(signal) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const done = new AbortController();
    const end = (settle) => () => {
      if (document.hidden && !signal.aborted) return;
      done.abort();
      settle(signal.reason);
    };
    signal.addEventListener("abort", end(reject), { signal: done.signal });
    document.addEventListener("visibilitychange", end(resolve), { signal: done.signal });
    end(resolve)();
  });
}

/** The longest pause after failures: a job that is back is not shown later than that. */
const LONGEST_PAUSE_MS = 10_000;

/** Ask again and again while the page can be seen. `show` gets what was found, `failed` the problem. Never rejects.
 *
 * What takes long is asked for less often: a page that is left open costs a job at most a tenth of one client. A failure
 * may be long because the job is away, and the answer after it because it has waited for the job: after these, the page
 * asks again soon. */
export async function poll(load, everyMs, { show, failed, signal }) {
  let failures = 0;
  try {
    for (;;) {
      await untilSeen(signal);
      const [began, before] = [performance.now(), failures];
      try {
        show(await load(signal));
        failures = 0;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof Problem)) throw error;
        failed(error);
        if (mustStop(error)) return;
        failures += 1;
      }
      let restMs = 9 * (performance.now() - began);
      if (failures > 1) restMs = Math.min(restMs, LONGEST_PAUSE_MS);
      else if (failures || before) restMs = 0;
      await pause(Math.max(everyMs, restMs), signal);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** So many of a browser's six connections to a gateway are streams, of all of its windows: the others are for requests. */
const MOST_STREAMS = 4;

/** Take a place for a stream until the signal; false when no place is free.
 *
 * Without locks (a browser has none for a page that comes by HTTP from another host) there is always a place. */
async function takePlace(signal) {
  if (!navigator.locks) return true;
  for (let number = 0; number < MOST_STREAMS; number++) {
    const taken = await new Promise((resolve, reject) => {
      const hold = (lock) => {
        resolve(lock !== null);
        return lock && aborted(signal);
      };
      navigator.locks.request(`qstate stream ${number}`, { ifAvailable: true }, hold).catch(reject);
    });
    if (taken) return true;
  }
  return false;
}

/** Resolves when the signal is aborted. */
function aborted(signal) {
  return new Promise((resolve) => {
    signal.addEventListener("abort", resolve, { once: true });
    if (signal.aborted) resolve();
  });
}

/** What asking again cannot change. */
function mustStop(problem) {
  return ["UNAUTHENTICATED", "FORBIDDEN", "UNSUPPORTED", "MALFORMED", "WRONG_KEY_TYPE"].includes(problem.code);
}

/** Follow server-sent events, and resume after the last one when the stream breaks. Never rejects.
 *
 * While the page is hidden, the stream is closed: a browser has six connections to a gateway for all of its tabs.
 * While other windows have all places for streams, `ask(signal)` is called every `everyMs` instead.
 *
 * `event(kind, data)` gets each, when all parts of it are there: without its last part an epoch is sent again.
 * `failed(problem)` gets each failure, and why the job of an open stream does not answer; the next event shows that it
 * does. After a failure that may pass, the stream is opened again. After COMPACTED it begins with a snapshot, as at
 * first. */
export async function follow(path, { event, failed, ask, everyMs, signal }) {
  let [id, tries] = [null, 0];
  try {
    for (;;) {
      await untilSeen(signal);
      const done = new AbortController();
      const seen = AbortSignal.any([signal, hidden.signal]);
      try {
        if (!(await takePlace(AbortSignal.any([seen, done.signal])))) {
          id = null; // what was asked for may be newer than the last event: begin with a snapshot
          await ask(seen);
          await pause(everyMs, seen);
          continue;
        }
        let parts = [];
        for await (const one of events(path, id, seen)) {
          tries = 0;
          if (one.kind === "error") throw new Problem(one.data);
          if (one.kind === "waiting") {
            failed(new Problem(one.data));
            continue;
          }
          parts.push(one);
          if (one.id === null) continue;
          id = one.id;
          for (const part of parts) event(part.kind, part.data);
          parts = [];
        }
      } catch (error) {
        if (seen.aborted) continue;
        if (!(error instanceof Problem)) throw error;
        if (error.code === "COMPACTED") id = null;
        failed(error);
        if (mustStop(error)) return;
      } finally {
        done.abort();
      }
      await pause(WAITS_MS[Math.min(tries++, WAITS_MS.length - 1)], signal);
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

async function* events(path, id, signal) {
  const silence = new AbortController();
  const both = AbortSignal.any([signal, silence.signal]);
  let timer = setTimeout(() => silence.abort(new Error("silent")), SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", ...(id === null ? {} : { "Last-Event-ID": id }) };
    const answer = await request(path, headers, both, signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    for (;;) {
      const { value, done } = await read(reader, signal);
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(new Error("silent")), SILENCE_MS);
      yield* parser.feed(value);
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    signal.throwIfAborted();
    report("lost");
    throw lost(error);
  }
}

/** Text in, events out. Bounded: an event that does not end is a failure. */
class EventParser {
  constructor() {
    this.pieces = [];
    this.size = 0;
    this.begin();
  }

  begin() {
    this.event = { kind: "message", id: null };
    this.data = [];
  }

  *feed(text) {
    this.pieces.push(text);
    this.size += text.length;
    if (this.size > LONGEST_EVENT) throw new Problem({ code: "TOO_LARGE", detail: "an event of the stream is too large" });
    if (!text.includes("\n")) return;
    const lines = this.pieces.join("").split("\n");
    this.pieces = [lines.at(-1)];
    this.size = lines.pop().length;
    for (const line of lines) {
      if (line.trim()) this.field(line.replace(/\r$/, ""));
      else if (this.data.length) {
        yield { ...this.event, data: parse(this.data.join("\n")) };
        this.begin();
      }
    }
  }

  field(line) {
    const colon = line.indexOf(":");
    const [name, value] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
    if (name === "event") this.event.kind = value;
    else if (name === "id") this.event.id = value;
    else if (name === "data") this.data.push(value);
  }
}
