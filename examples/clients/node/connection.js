// One connection: the handshake, requests in flight and their answers.

import net from "node:net";

import { QueryError, failure } from "./failures.js";
import * as protocol from "./protocol.js";
import { BrokenProtocol, FAILURE, FrameReader, WELCOME, frame, read } from "./protocol.js";

/** The largest answer that this client takes, whatever the server allows. */
const LARGEST_FRAME = 64 * 1024 * 1024;
/** How long a server must have been silent before an unanswered request makes the connection count as dead. */
const SILENCE_MS = 1000;
/** The server gets a slightly earlier deadline, so that its own "deadline exceeded", which has more details, arrives. */
const MARGIN = 0.95;

export class Connection {
  #socket;
  #reader = new FrameReader();
  /** Requests without an answer, by id. A request without a waiter stays: its id is still in use (P-REQ-7). */
  #waiting = new Map();
  #nextId = 1;
  #welcome = null;
  #heardAt = performance.now();

  /** Why the connection is over, if it is. */
  ended = null;

  constructor(host, port, token) {
    this.ready = new Promise((resolve, reject) => {
      this.#opened = resolve;
      this.#refused = reject;
    });
    // The rejection reaches every waiter; without a waiter it is no error.
    this.ready.catch(() => {});
    this.#socket = net.connect({ host, port, noDelay: true });
    this.#socket.on("connect", () => this.#socket.write(frame([protocol.HELLO, 0, protocol.VERSIONS, token, "qstate-node"])));
    this.#socket.on("data", (chunk) => this.#received(chunk));
    this.#socket.on("error", (error) => this.end(unavailable(error.message)));
    this.#socket.on("close", () => this.end(unavailable("the server closed the connection")));
  }

  #opened;
  #refused;

  get maxKeys() {
    return this.#welcome.maxKeys;
  }

  /**
   * The answer to a request, whose fields `fieldsOf(deadlineMs)` gives.
   *
   * `fits(message)` says whether an answer of the type belongs to the request. Raises QueryError.
   */
  request(type, answer, fieldsOf, deadline, fits = () => true) {
    if (this.ended) return Promise.reject(this.ended.forUnsent?.() ?? this.ended);
    const left = deadline - performance.now();
    if (left <= 0) return Promise.reject(new QueryError("DEADLINE_EXCEEDED"));
    const id = this.#freeId();
    const bytes = frame([type, id, ...fieldsOf(Math.max(1, Math.floor(left * MARGIN)))], this.#welcome.maxFrame);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#gaveUp(id), left);
      this.#waiting.set(id, { answer, fits, resolve, reject, timer, sentAt: performance.now() });
      this.#socket.write(bytes);
    });
  }

  /**
   * Close, and fail every request with this error. The first reason counts.
   *
   * A request that was sent may be what ended the connection, so it must not be sent again (P-RETRY-5); one that was
   * not sent may be.
   */
  end(error) {
    if (this.ended) return;
    this.ended = error;
    this.#socket.destroy();
    this.#refused(error.forUnsent?.() ?? error);
    for (const { reject, timer } of this.#waiting.values()) {
      clearTimeout(timer);
      reject(error);
    }
    this.#waiting.clear();
  }

  #freeId() {
    while (this.#waiting.has(this.#nextId)) this.#nextId = (this.#nextId % 0xffffffff) + 1;
    const id = this.#nextId;
    this.#nextId = (id % 0xffffffff) + 1;
    return id;
  }

  #gaveUp(id) {
    const request = this.#waiting.get(id);
    request.late = true;
    request.reject(new QueryError("DEADLINE_EXCEEDED"));
    // The oldest comes first. Short deadlines must not hide that nothing comes any more (P-DEADLINE-5).
    const { sentAt } = [...this.#waiting.values()].find(({ late }) => late);
    if (performance.now() - Math.max(sentAt, this.#heardAt) >= SILENCE_MS) this.end(unavailable("no answer"));
  }

  #received(chunk) {
    this.#heardAt = performance.now();
    try {
      for (const payload of this.#reader.feed(chunk)) {
        if (this.ended) return;
        const message = read(payload);
        if (message.type === FAILURE && message.id === 0) this.end(this.#failed(message));
        else if (this.#welcome === null) this.#welcomed(message);
        else this.#answered(message);
      }
    } catch (error) {
      if (!(error instanceof BrokenProtocol)) throw error;
      this.end(unavailable(`the server broke the protocol: ${error.message}`));
    }
  }

  #welcomed(message) {
    if (message.type !== WELCOME) throw new BrokenProtocol("a server begins with Welcome");
    if (!protocol.VERSIONS.includes(message.version)) {
      this.end(new QueryError("VERSION_MISMATCH", new Map([["version", message.version]])));
      return;
    }
    this.#welcome = message;
    this.#reader.maxFrame = Math.min(message.maxFrame, LARGEST_FRAME);
    this.#opened(this);
  }

  #answered(message) {
    const request = this.#waiting.get(message.id);
    if (request === undefined) throw new BrokenProtocol(`nothing with the id ${message.id} is in flight`);
    const isFailure = message.type === FAILURE;
    if (!isFailure && (message.type !== request.answer || !request.fits(message))) {
      throw new BrokenProtocol("the answer does not belong to the request");
    }
    this.#waiting.delete(message.id);
    clearTimeout(request.timer);
    // Once its deadline has passed this changes nothing: the promise is settled.
    if (isFailure) request.reject(failure(message.code, message.details));
    else request.resolve(message);
  }

  // Requests in flight are UNAVAILABLE, or what the server says about itself (P-FAIL-3). Before the Welcome there are
  // none, and the code says why there will be none.
  #failed({ code, details }) {
    const error = failure(code, details);
    const tells = this.#welcome === null || ["SHUTTING_DOWN", "OVERLOADED"].includes(error.code);
    return tells ? error : unavailable(`the server ended the connection: ${error.message}`);
  }
}

function unavailable(reason) {
  return new QueryError("UNAVAILABLE", new Map(), reason);
}
