"""Laws of the bytes that a socket has not taken yet: all of them, in order, and counted."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

from qstate.runtime.net.unsent import SMALL_BYTES, Unsent

LARGE = bytes(range(256)) * 4096


@pytest.mark.parametrize("sizes", [[1, 2, 3], [len(LARGE)], [5, len(LARGE), 7], [SMALL_BYTES] * 3 + [SMALL_BYTES + 1]])
def test_bytes_come_in_order_and_are_counted_until_they_are_sent(sizes: list[int]) -> None:
    unsent, pieces = Unsent(), [LARGE[:size] for size in sizes]
    for piece in pieces:
        unsent.add(b"sent" + piece, 4)
    assert unsent.size == sum(sizes)
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        received = b""
        while unsent.size:
            before = unsent.size
            with suppress(BlockingIOError):
                unsent.send(here)
            received += there.recv(before - unsent.size) if unsent.size < before else there.recv(1 << 20)
            assert unsent.held >= unsent.size
        there.settimeout(5)
        while len(received) < sum(sizes):
            received += there.recv(1 << 20)
    assert received == b"".join(pieces)
    assert unsent.held == 0


def test_a_large_piece_is_in_memory_until_it_is_sent_whole() -> None:
    unsent = Unsent()
    unsent.add(LARGE, 10)
    assert (unsent.size, unsent.held) == (len(LARGE) - 10, len(LARGE))
    unsent.clear()
    assert (unsent.size, unsent.held) == (0, 0)
