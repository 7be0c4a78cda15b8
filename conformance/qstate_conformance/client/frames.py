"""The frames that a server sends, as bytes, and the numbers of the protocol reference.

Rules of this module: bytes out, no sockets and nothing of `qstate.protocol`. It builds the
frame that the caller asks for, right or wrong: the caller decides whether the frame keeps the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.packing import Choose, pack, shortest

__all__ = [
    "CANCEL",
    "CHANGES",
    "CODES",
    "CODE_NAMES",
    "DESCRIBE",
    "DESCRIPTION",
    "FAILURE",
    "FATAL",
    "FATAL_ANSWERS",
    "FINGERPRINT",
    "GET",
    "GET_PART",
    "HELLO",
    "LOCATE",
    "LOCATION",
    "LOOK_UP_AGAIN",
    "MAX_FRAME",
    "MAX_KEYS",
    "PAGE",
    "PART",
    "PING",
    "POLL",
    "PONG",
    "RETRY_HERE",
    "SCAN",
    "VALUES",
    "WELCOME",
    "changes",
    "description",
    "failure",
    "frame",
    "location",
    "message",
    "page",
    "part",
    "pong",
    "values",
    "welcome",
]

HELLO, WELCOME, GET, VALUES, LOCATE, LOCATION, DESCRIBE, DESCRIPTION, PING, PONG, FAILURE = map(int, [*Type][:11])
SCAN, PAGE, POLL, CHANGES, CANCEL = map(int, (Type.SCAN, Type.PAGE, Type.POLL, Type.CHANGES, Type.CANCEL))
GET_PART, PART = int(Type.GET_PART), int(Type.PART)

#: Of the state that the peer of a law describes, unless the law says otherwise.
FINGERPRINT = "0f1e2d3c4b5a6978"
MAX_FRAME = 16 * 1024 * 1024
MAX_KEYS = 10_000

CODES = {code.name: int(code) for code in Code}
#: By retry answer, as in the table of failures.
RETRY_HERE = {
    name: CODES[name]
    for name in (
        "RESTORING",
        "OVERLOADED",
        "CONCURRENT_MODIFICATION",
        "EPOCH_NOT_REACHED",
        "TOO_STALE",
        "NO_COMMITTED_EPOCH",
    )
}
LOOK_UP_AGAIN = {
    name: CODES[name]
    for name in (
        "UNKNOWN_KEY_GROUP_LOCATION",
        "UNKNOWN_STATE_ID",
        "KEY_GROUP_NOT_OWNED",
        "SHUTTING_DOWN",
    )
}
FATAL = {name: code for name, code in CODES.items() if name not in RETRY_HERE and name not in LOOK_UP_AGAIN}
#: KEY_NOT_FOUND is never sent: there, a result is nil.
FATAL_ANSWERS = {name: code for name, code in FATAL.items() if name != "KEY_NOT_FOUND"}
CODE_NAMES = {number: name for name, number in CODES.items()}


def frame(payload: bytes) -> bytes:
    """The payload with its length before it."""
    return len(payload).to_bytes(4, "big") + payload


def message(*elements: Any, choose: Choose = shortest) -> bytes:
    """The frame of an array of these elements."""
    return frame(pack(elements, choose))


def welcome(
    version: int = 1,
    *,
    server: str = "conformance suite",
    features: tuple[Any, ...] = (),
    max_frame: int = MAX_FRAME,
    max_keys: int = MAX_KEYS,
    last: tuple[Any, ...] = (1000, 0),
    more: tuple[Any, ...] = (),
) -> bytes:
    """Welcome; `last` are the elements that may be left out, `more` those that a newer server appends."""
    return message(WELCOME, 0, version, server, features, max_frame, max_keys, *last, *more)


def values(
    request_id: int,
    results: tuple[Any, ...] | list[Any],
    epoch: int = 1,
    *,
    fingerprint: Any = FINGERPRINT,
    choose: Choose = shortest,
) -> bytes:
    """Values: the epoch is that of every result that is no failure."""
    epochs = [-1 if isinstance(result, int) else epoch for result in results]
    return message(VALUES, request_id, epochs, results, fingerprint, choose=choose)


def page(
    request_id: int,
    entries: Mapping[Any, Any],
    next_group: int,
    after: Any = None,
    *,
    epoch: Any = 1,
    fingerprint: Any = FINGERPRINT,
    view: Any = b"",
    **more: Any,
) -> bytes:
    """Page; `entries` are results by key. `more` replaces what follows from them: selected, namespaces, keys, results.

    Unless `more` has them, the namespaces are void.
    """
    fields = {"selected": len(entries), "namespaces": [], "keys": [*entries], "results": [*entries.values()], **more}
    return message(PAGE, request_id, epoch, fingerprint, view, next_group, after, *fields.values())


def changes(
    request_id: int,
    stop_group: int,
    next_epoch: int,
    position: bytes = b"",
    *,
    committed: int | None = None,
    runs: tuple[Any, ...] | list[Any] = (),
    fingerprint: Any = FINGERPRINT,
    attributes: Mapping[str, Any] | None = None,
) -> bytes:
    """Changes; unless it is said, the epoch before `next_epoch` is the newest committed one."""
    newest = next_epoch - 1 if committed is None else committed
    last = () if attributes is None else (attributes,)
    return message(CHANGES, request_id, fingerprint, stop_group, next_epoch, position, newest, runs, *last)


def part(
    request_id: int,
    result: Any,
    *,
    after: Any = None,
    total: Any = 0,
    version: Any = b"",
    epoch: Any = 1,
    fingerprint: Any = FINGERPRINT,
) -> bytes:
    """Part."""
    return message(PART, request_id, epoch, fingerprint, result, after, total, version)


def failure(request_id: int, code: int, details: dict[str, Any] | None = None) -> bytes:
    """Failure; the id 0 is about the connection."""
    return message(FAILURE, request_id, code, details or {})


def location(
    request_id: int, state: dict[str, Any], owners: tuple[Any, ...] | list[Any], max_parallelism: int = 128
) -> bytes:
    """Location; an owner is (start, stop, host, port, state id)."""
    return message(LOCATION, request_id, state, max_parallelism, owners)


def description(request_id: int, entries: tuple[Any, ...] | list[Any]) -> bytes:
    """Description."""
    return message(DESCRIPTION, request_id, entries)


def pong(request_id: int) -> bytes:
    """Pong."""
    return message(PONG, request_id)
