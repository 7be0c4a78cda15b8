"""Laws of the reactor (with a clock that the test moves) and of its channels (over real sockets)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from qstate.errors import ClosedError
from qstate.runtime.net.channel import Channel, ChannelState, SlowReader
from qstate.runtime.net.reactor import SWEEP_TIMERS, Reactor
from tests.runtime.serving.clock import Clock
from tests.runtime.serving.raw_client import PATIENCE_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reactor(clock: Clock) -> Iterator[Reactor]:
    reactor = Reactor(clock=clock)
    yield reactor
    if not reactor.stopped:
        reactor.stop()
        reactor.turn(0.0)


class Recorder:
    """A channel on a socket pair that the test drives, and its callbacks."""

    def __init__(self, reactor: Reactor, max_unsent_bytes: int = 1 << 20) -> None:
        self.reactor = reactor
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(PATIENCE_S)
        self.received = b""
        self.closed: list[BaseException | None] = []
        self.channel = Channel(
            reactor, self.ours, on_data=self._on_data, on_close=self.closed.append, max_unsent_bytes=max_unsent_bytes
        )
        self.channel.open()

    def _on_data(self, data: bytes) -> None:
        self.received += data

    def turns(self, count: int = 3) -> None:
        for _ in range(count):
            self.reactor.turn(0.0)


@pytest.fixture
def recorder(reactor: Reactor) -> Iterator[Recorder]:
    recorder = Recorder(reactor)
    yield recorder
    recorder.theirs.close()


def test_timers_run_when_due_in_order_and_once(reactor: Reactor, clock: Clock) -> None:
    ran: list[str] = []
    reactor.call_later(2.0, lambda: ran.append("second"))
    reactor.call_later(1.0, lambda: ran.append("first"))
    reactor.turn(0.0)
    assert ran == []
    clock.now += 1.0
    reactor.turn(0.0)
    assert ran == ["first"]
    clock.now += 5.0
    reactor.turn(0.0)
    reactor.turn(0.0)
    assert ran == ["first", "second"]


def test_cancelled_timers_never_run_and_do_not_pile_up(reactor: Reactor, clock: Clock) -> None:
    ran: list[int] = []
    kept = [reactor.call_later(1.0, lambda: ran.append(1)) for _ in range(3)]
    for _ in range(5 * SWEEP_TIMERS):
        timer = reactor.call_later(1.0, lambda: ran.append(2))
        timer.cancel()
        timer.cancel()
    assert len(reactor._timers) <= SWEEP_TIMERS + len(kept) + 1
    clock.now += 1.0
    reactor.turn(0.0)
    assert ran == [1, 1, 1]


def test_reactor_survives_a_callback_that_raises(reactor: Reactor, clock: Clock) -> None:
    ran: list[str] = []

    def broken() -> None:
        raise RuntimeError("a bug in a callback")

    for action in (broken, lambda: ran.append("timer")):
        reactor.call_later(0.0, action)
        reactor.call_soon(action)
    reactor.turn(0.0)
    assert ran == ["timer", "timer"]


def test_a_timer_due_in_years_ends_no_wait() -> None:
    reactor = Reactor("far ahead")
    reactor.start()
    try:
        reached = threading.Event()
        # The kernel can wait less than 25 days at once.
        reactor.call_soon(reactor.call_later, 1e9, reached.set)
        for _ in range(2):
            turned = threading.Event()
            reactor.call_soon(turned.set)
            assert turned.wait(PATIENCE_S)
        assert not reached.is_set()
    finally:
        reactor.stop()
        assert reactor.join(PATIENCE_S)


def test_calls_from_other_threads_wake_a_waiting_reactor() -> None:
    reactor, ran = Reactor(), threading.Event()
    reactor.start()
    try:
        reactor.call_soon(ran.set)
        assert ran.wait(PATIENCE_S)
        ran.clear()
        counted: list[int] = []

        def call_often() -> None:
            for _ in range(500):
                reactor.call_soon(counted.append, 1)

        threads = [threading.Thread(target=call_often) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reactor.call_soon(ran.set)
        assert ran.wait(PATIENCE_S) and len(counted) == 2000
    finally:
        reactor.stop()
        assert reactor.join(PATIENCE_S)
    reactor.call_soon(ran.clear)  # has no effect
    assert ran.is_set()


def test_channel_delivers_and_sends(recorder: Recorder) -> None:
    recorder.theirs.sendall(b"ping")
    recorder.turns()
    assert recorder.received == b"ping"
    recorder.channel.send(b"po")
    recorder.channel.send_soon(b"n")
    recorder.channel.send_soon(b"g")
    assert recorder.theirs.recv(10) == b"po"
    recorder.turns()
    assert recorder.theirs.recv(10) == b"ng"


def test_closing_from_another_thread_sends_the_turns_collected_bytes(recorder: Recorder, reactor: Reactor) -> None:
    def answer_here_and_end_there() -> None:
        recorder.channel.send_soon(b"answer")
        there = threading.Thread(target=recorder.channel.close_when_sent)
        there.start()
        there.join(PATIENCE_S)

    reactor.call_soon(answer_here_and_end_there)
    recorder.turns()
    assert recorder.theirs.recv(100) == b"answer"
    assert recorder.theirs.recv(100) == b""
    assert recorder.closed == [None]


def test_end_of_the_peer_closes_once(recorder: Recorder) -> None:
    recorder.theirs.close()
    recorder.turns()
    recorder.channel.close(ValueError("too late"))
    recorder.turns()
    assert recorder.closed == [None]
    assert not recorder.channel.send(b"dropped")


def test_channel_with_too_many_unread_bytes_is_closed(reactor: Reactor) -> None:
    recorder = Recorder(reactor, max_unsent_bytes=1 << 20)
    while recorder.channel.send(b"x" * 100_000):
        pass
    recorder.turns()
    assert [type(reason) for reason in recorder.closed] == [SlowReader]
    recorder.theirs.close()


def test_finish_delivers_what_is_queued_although_the_peer_still_sends(recorder: Recorder) -> None:
    sent = b"x" * 900_000
    recorder.channel.send(sent)
    recorder.theirs.sendall(b"unread")
    recorder.channel.finish()
    assert not recorder.channel.send(b"too late")
    found = b""
    while len(found) < len(sent):
        recorder.turns()
        found += recorder.theirs.recv(1 << 20)
    recorder.turns()
    assert found == sent and recorder.theirs.recv(1) == b""
    assert recorder.received == b"" and recorder.closed == []
    recorder.theirs.close()
    recorder.turns()
    assert recorder.closed == [None]


def test_finish_waits_a_bounded_time(recorder: Recorder, clock: Clock) -> None:
    recorder.channel.finish(linger_s=1.0)
    recorder.turns()
    assert recorder.closed == []
    clock.now += 1.0
    recorder.turns()
    assert recorder.closed == [None]


def test_error_in_delivery_closes_that_channel_only(reactor: Reactor, caplog: pytest.LogCaptureFixture) -> None:
    healthy, broken = Recorder(reactor), Recorder(reactor)
    broken.channel._on_data = lambda data: [][len(data)]
    for recorder in (healthy, broken):
        recorder.theirs.sendall(b"ping")
    healthy.turns()
    assert [type(reason) for reason in broken.closed] == [IndexError] and "IndexError" in caplog.text
    assert healthy.received == b"ping" and healthy.closed == []
    for recorder in (healthy, broken):
        recorder.theirs.close()


def test_sends_are_queued_until_the_connect_succeeds(reactor: Reactor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = Channel(
            reactor, socket.socket(), on_data=lambda data: None, on_close=lambda reason: None, max_unsent_bytes=1000
        )
        channel.connect(listener.getsockname())
        channel.send(b"hello")
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(PATIENCE_S)
            for _ in range(3):
                reactor.turn(0.0)
            assert peer.recv(10) == b"hello"
            assert channel.state is ChannelState.OPEN


def test_connect_that_fails_is_reported(reactor: Reactor) -> None:
    closed: list[BaseException | None] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    channel = Channel(
        reactor, socket.socket(), on_data=lambda data: None, on_close=closed.append, max_unsent_bytes=1000
    )
    channel.connect(address)
    for _ in range(5):
        reactor.turn(0.1)
    assert [type(reason) for reason in closed] == [ConnectionRefusedError]


def test_stopping_the_reactor_closes_its_channels(recorder: Recorder) -> None:
    recorder.reactor.stop()
    recorder.reactor.turn(0.0)
    assert [type(reason) for reason in recorder.closed] == [ClosedError]
    assert recorder.theirs.recv(1) == b""
