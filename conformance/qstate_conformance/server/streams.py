"""What the bytes of a client ask of a server, and whether what came back answers them.

Rules of this module: bytes and messages, no sockets. It finds in a stream what a server has to find there by the
protocol reference: whole frames, the type and the id of each, and the first that ends the connection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from qstate_conformance.server.messages import Failure, ServerMessage, Violation, Welcome

__all__ = ["HANDSHAKE_MAX_FRAME", "Asked", "asked_by", "check_answers"]

#: What neither side may exceed before the Welcome.
HANDSHAKE_MAX_FRAME = 65_536
_MAX_U32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Asked:
    """What a stream asks for.

    `opening` is its first payload, None when the stream ends within it or it is over the limit. `ids` are those of
    the requests behind it. `broken` says that something ends the connection: the requests before it may go unanswered.
    """

    opening: bytes | None
    ids: tuple[int, ...]
    broken: bool


def asked_by(data: bytes, max_frame: int) -> Asked:
    """What these bytes, and then the end of the stream, ask of a server that allows so much in its Welcome."""
    opening, rest, broken = _cut(data, HANDSHAKE_MAX_FRAME)
    ids: list[int] = []
    while opening is not None and not broken:
        payload, rest, broken = _cut(rest, max_frame)
        if payload is None:
            break
        number = _id_of(payload)
        broken = not number
        ids += [number] * (not broken)
    return Asked(opening, tuple(ids), broken)


def _cut(data: bytes, limit: int) -> tuple[bytes | None, bytes, bool]:
    """The first payload, what follows it, and whether its length is over the limit."""
    length = int.from_bytes(data[:4], "big")
    if len(data) < 4 or length > limit or len(data) < 4 + length:
        return None, b"", len(data) >= 4 and length > limit
    return data[4 : 4 + length], data[4 + length :], False


def _id_of(payload: bytes) -> int:
    """The id of a message; 0 when it cannot be read, because P-MSG-1 is broken, or when the id is 0."""
    reader = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=max(1, len(payload)))
    reader.feed(payload)
    try:
        size = reader.read_array_header()
        kind, number = reader.unpack(), reader.unpack()
        # What the other elements are is the request's own affair (P-REQ-3); they need only be there.
        for _ in range(size - 2):
            reader.skip()
    except (ValueError, TypeError, msgpack.UnpackException):
        return 0
    sound = size >= 2 and reader.tell() == len(payload) and _is_unsigned(kind) and _is_unsigned(number)
    return number if sound else 0


def _is_unsigned(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_U32


def check_answers(asked: Asked, found: Sequence[ServerMessage], *, welcome: bool) -> None:
    """See that this is what a server may say to such a stream, whose opening is a sound Hello if `welcome`.

    As many answers are due with an id as there were requests with it, even when a client uses one twice (P-REQ-5).
    """
    if not found or not isinstance(found[0], Welcome):
        _check_refusal(asked, found, welcome=welcome)
        return
    answers = found[1:]
    last = answers[-1] if answers else None
    ended = isinstance(last, Failure) and last.id == 0
    for position, message in enumerate(answers):
        if isinstance(message, Welcome):
            raise Violation(f"P-HELLO-2: a Welcome after {position + 1} messages")
        if message.id == 0 and position != len(answers) - 1:
            raise Violation(f"P-CLOSE-3: {answers[position + 1]} after {message}")
    due = Counter(asked.ids)
    came = Counter(message.id for message in answers if not isinstance(message, Welcome) and message.id)
    if came - due:
        raise Violation(f"P-REQ-2: more answers than requests, by id: {dict(came - due)} in {answers}")
    if asked.broken and not ended:
        raise Violation(f"P-BROKEN-1: {last} at the end of a broken stream")
    if due - came and not asked.broken:
        raise Violation(f"P-CLOSE-5: no answer, by id: {dict(due - came)}; there came {answers}")


def _check_refusal(asked: Asked, found: Sequence[ServerMessage], *, welcome: bool) -> None:
    if welcome and not asked.broken:
        raise Violation(f"P-HELLO-2: {found} for a sound Hello")
    refusal = found[0] if found else None
    if len(found) > 1 or (refusal is not None and not (isinstance(refusal, Failure) and refusal.id == 0)):
        raise Violation(f"P-HELLO-2: {found} without a Welcome")
    if refusal is None and (asked.opening is not None or asked.broken):
        raise Violation("P-HELLO-2: the connection ended without a Failure of id 0")
