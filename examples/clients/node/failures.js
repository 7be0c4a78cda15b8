// Failure codes and their errors.

const FATAL = "fatal";
const HERE = "retry here";
const AGAIN = "look up again";

const CODES = new Map([
  [1, ["UNKNOWN_JOB", FATAL]],
  [2, ["UNKNOWN_STATE", FATAL]],
  [3, ["UNKNOWN_KEY_GROUP_LOCATION", AGAIN]],
  [4, ["UNKNOWN_STATE_ID", AGAIN]],
  [5, ["KEY_GROUP_NOT_OWNED", AGAIN]],
  [6, ["KEY_NOT_FOUND", FATAL]],
  [7, ["WRONG_KEY_TYPE", FATAL]],
  [8, ["RESTORING", HERE]],
  [9, ["SHUTTING_DOWN", AGAIN]],
  [10, ["OVERLOADED", HERE]],
  [11, ["DEADLINE_EXCEEDED", FATAL]],
  [12, ["CONCURRENT_MODIFICATION", HERE]],
  [13, ["UNSUPPORTED", FATAL]],
  [14, ["MALFORMED", FATAL]],
  [15, ["TOO_LARGE", FATAL]],
  [16, ["VERSION_MISMATCH", FATAL]],
  [17, ["UNAUTHENTICATED", FATAL]],
  [18, ["FORBIDDEN", FATAL]],
  [19, ["INTERNAL", FATAL]],
  [20, ["UNAVAILABLE", FATAL]],
  [21, ["EPOCH_NOT_REACHED", HERE]],
  [22, ["TOO_STALE", HERE]],
  [23, ["NO_COMMITTED_EPOCH", HERE]],
  [24, ["TLS_FAILED", FATAL]],
  [25, ["COMPACTED", FATAL]],
  [26, ["SCAN_EXPIRED", FATAL]],
  [27, ["CANCELLED", FATAL]],
]);
const RETRY = new Map(CODES.values());

/** A query failed. `code` is the name of the failure code, `details` a Map of the facts that came with it. */
export class QueryError extends Error {
  constructor(code, details = new Map(), text = "") {
    const facts = [...details].map(([name, value]) => `${name}=${value}`).join(", ");
    super([code, text, facts].filter(Boolean).join(": "));
    this.code = code;
    this.details = details;
    this.text = text;
    /** Whether no server can have seen the request. */
    this.unsent = false;
  }

  get mayPass() {
    return this.unsent || RETRY.get(this.code) !== FATAL;
  }

  /** This error for a request that was not sent. What a server has said about itself stays as it is. */
  forUnsent() {
    const error = new QueryError(this.code, this.details, this.text);
    error.unsent = this.code === "UNAVAILABLE";
    return error;
  }

  /** How long the server wants to be left alone. A detail may be missing or be anything. */
  get retryAfterMs() {
    const wish = this.code === "OVERLOADED" ? this.details.get("retry_after_ms") : 0;
    return ["number", "bigint"].includes(typeof wish) && wish > 0 ? Number(wish) : 0;
  }
}

/** The error of a failure code; one that is not known is INTERNAL. */
export function failure(number, details) {
  return new QueryError(CODES.get(number)?.[0] ?? "INTERNAL", details);
}

/** The arguments of a call cannot be sent. */
export class InvalidArgument extends Error {}

/** The client was closed. */
export class ClosedError extends Error {}

/** The bytes of a state cannot be read by this client. */
export class UnreadableState extends Error {}

/** A mutator of a read-only view was called. */
export class UnsupportedOperation extends Error {}
