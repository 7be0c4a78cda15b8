"""Laws of `qstate.runtime.control.secure_socket`: a quiet connection costs little memory, and much data few reads."""

from __future__ import annotations

import threading
import tracemalloc

from qstate.runtime.control.secure_socket import RECEIVE_BYTES
from tests.runtime.control.secure_pairs import secure_pair

#: Of both ends together. The driver of a large job has ten thousand connections.
MOST_BYTES = 100_000
PAIRS = 20


def test_a_connection_that_sends_little_costs_little_memory() -> None:
    close(secure_pair())  # the contexts of the secret are kept
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        pairs = [secure_pair() for _ in range(PAIRS)]
        for accepting, connecting in pairs:
            connecting.sendall(b"x" * 1000)
            assert accepting.receive_exactly(1000) == b"x" * 1000
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for pair in pairs:
        close(pair)
    assert (after - before) / PAIRS < MOST_BYTES


def test_a_connection_that_sends_much_is_read_in_large_pieces() -> None:
    accepting, connecting = secure_pair()
    data = bytes(range(256)) * (40 * RECEIVE_BYTES // 256)
    sending = threading.Thread(target=connecting.sendall, args=(data,))
    sending.start()
    assert accepting.receive_exactly(len(data)) == data
    sending.join(30.0)
    assert len(accepting._received) == RECEIVE_BYTES
    close((accepting, connecting))


def close(pair: tuple[object, ...]) -> None:
    for end in pair:
        end.socket.close()  # type: ignore[attr-defined]
