"""Laws of listening: the order of ports, the error when every port is taken, and how many are accepted at a time."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from qstate.errors import ConfigError
from qstate.runtime.net.listener import ACCEPTS_PER_TURN, TURN_PAUSE_S, Listener, listen
from qstate.runtime.net.reactor import Reactor


def test_first_free_port_of_the_list_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as blocker:
        taken = blocker.getsockname()[1]
        with listen("127.0.0.1", f"{taken},0", "test server") as found:
            assert found.getsockname()[1] not in (0, taken)
        # After a taken first port the others of the range are tried. Any process may have taken the last one.
        if taken < 65_000:
            with listen("127.0.0.1", f"{taken}-{taken + 500}", "test server") as found:
                assert taken < found.getsockname()[1] <= taken + 500
        with pytest.raises(ConfigError, match=f"no free port for the test server.*'{taken}'"):
            listen("127.0.0.1", f"{taken}", "test server")


def test_address_of_another_host_is_refused_by_name() -> None:
    for bind in ("192.0.2.1", "host.invalid"):
        with pytest.raises(ConfigError, match=bind):
            listen(bind, "0-5", "test server")


def test_connections_that_come_together_are_accepted_in_turns() -> None:
    """What a connection costs is not the accept alone: a flood of them must not delay the open ones."""
    accepted: list[socket.socket] = []
    now = [100.0]
    reactor = Reactor(clock=lambda: now[0])
    with ExitStack() as stack:
        listening = listen("127.0.0.1", 0, "test server")
        listener = Listener(reactor, listening, lambda sock, peer: accepted.append(stack.enter_context(sock)))
        listener.open()
        reactor.turn(0.0)
        for _ in range(ACCEPTS_PER_TURN + 2):
            stack.enter_context(socket.create_connection(listening.getsockname()))
        for _ in range(3):
            reactor.turn(0.0)
            assert len(accepted) == ACCEPTS_PER_TURN
        now[0] += TURN_PAUSE_S
        for _ in range(2):  # the timer, then the socket
            reactor.turn(0.0)
        assert len(accepted) == ACCEPTS_PER_TURN + 2
        listener.close()
        reactor.turn(0.0)
        reactor.stop()
        reactor.turn(0.0)
