"""Bytes for both ends: golden frames, mutated ones, and anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

__all__ = ["DAMAGES", "GOLDEN", "Damage", "streams"]

_CORPUS = json.loads(
    (Path(__file__).parents[2] / "conformance" / "qstate_conformance" / "corpus" / "frames.json").read_text()
)
#: By sender: the frames that it may send.
GOLDEN = {
    side: [
        bytes.fromhex(item["frame"]) for item in (*_CORPUS["frames"], *_CORPUS["accepted"]) if item["sender"] == side
    ]
    for side in ("client", "server")
}
#: Bytes that mean much to MessagePack or to the frame.
_TELLING = st.sampled_from(
    [b"\xff", b"\0", b"\xdd\0\0\xff\xff", b"\xc1", b"\x81", b"\x91", b"\xdf\x7f\xff\xff\xff", b"\xc7\x04\x07"]
)


class Damage(NamedTuple):
    """What happens to a frame: edits as (place, bytes removed, bytes inserted), and its length if that is wrong."""

    edits: list[tuple[int, int, bytes]]
    length: int | None

    def to(self, frame: bytes) -> bytes:
        """The frame after it."""
        payload = bytearray(frame[4:])
        for place, removed, inserted in self.edits:
            at = place % (len(payload) + 1)
            payload[at : at + removed] = inserted
        length = len(payload) if self.length is None else self.length
        return length.to_bytes(4, "big") + bytes(payload)


DAMAGES = st.builds(
    Damage,
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 4), st.one_of(_TELLING, st.binary(max_size=6))),
        min_size=1,
        max_size=4,
    ),
    st.one_of(*[st.none()] * 9, st.integers(0, (1 << 32) - 1)),
)


def streams(side: str) -> st.SearchStrategy[list[bytes]]:
    """What one side may send: a few chunks, valid, mutated, cut off, or without any form."""
    valid = st.sampled_from(GOLDEN[side])
    damaged = st.builds(lambda damage, frame: damage.to(frame), DAMAGES, valid)
    cut = damaged.flatmap(lambda data: st.integers(0, len(data)).map(lambda size: data[:size]))
    return st.lists(st.one_of(valid, damaged, damaged, cut, st.binary(max_size=64)), min_size=1, max_size=6)
