"""A connection on a reactor whose sends never block.

Rules of this module: it moves bytes and knows nothing of messages. It must not block on a peer that does not read, on a
peer that does not answer a connect, or on the name service (the caller resolves addresses before).

`send` writes from the calling thread if nothing is queued. That saves a wake-up of the reactor per answer, which costs
about as much as the rest of a small request on two cores.
"""

from __future__ import annotations

import errno
import select
import selectors
import socket
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

from qstate.errors import ClosedError
from qstate.runtime.net.reactor import Reactor, Timer
from qstate.runtime.net.unsent import Unsent

__all__ = ["LINGER_S", "Channel", "ChannelState", "SlowReader"]

RECEIVE_BYTES = 64 * 1024
#: The bound on writes in one turn, so that a peer that reads much does not delay the others.
SENDS_PER_TURN = 4
#: How long a finishing channel waits for the peer to read the last bytes and close.
LINGER_S = 1.0
_IN_PROGRESS = {errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EALREADY}


class SlowReader(ConnectionError):
    """The peer read too little: its connection holds more unsent bytes than allowed, or for too long."""


class ChannelState(Enum):
    """The states of a channel. Only an OPEN channel delivers bytes."""

    CONNECTING = "the connect is pending; sends are queued"
    OPEN = "bytes flow both ways"
    FINISHING = "the last bytes are sent, input is discarded"
    CLOSED = "the socket is closed or about to be"


class Channel:
    """A connection whose sends never block.

    `on_data(bytes)` and `on_close(reason)` run on the driving thread. `on_close` runs exactly once, also when a connect
    fails, with the error, or None for an orderly end. `on_end` runs on the thread of `on_data` when the peer sends
    nothing more: the user of the channel then calls `close_when_sent`, at once or later. Without `on_end` the channel
    closes itself. With more than `max_unsent_bytes` unsent it closes itself with `SlowReader`.
    """

    __slots__ = (
        "_arrivals",
        "_closing",
        "_collected",
        "_ended",
        "_input_ended",
        "_interest",
        "_linger",
        "_lock",
        "_max_unsent",
        "_on_close",
        "_on_data",
        "_on_end",
        "_reactor",
        "_reason",
        "_sock",
        "_taken_at",
        "_unsent",
        "state",
    )

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        on_data: Callable[[bytes], Any],
        on_close: Callable[[BaseException | None], None],
        max_unsent_bytes: int,
        on_end: Callable[[], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._sock = sock
        self._on_data = on_data
        self._on_end = on_end
        self._on_close = on_close
        self._max_unsent = max_unsent_bytes
        self._lock = threading.Lock()
        self._unsent = Unsent()
        #: When the socket last took some of the unsent bytes.
        self._taken_at = 0.0
        self._interest = 0
        self._linger: Timer | None = None
        self._ended = False
        self._input_ended = False
        self._closing = False
        self._collected: list[bytes] = []
        self._reason: BaseException | None = None
        # A poll of its own takes 0.7 us, a read without input 3 us.
        self._arrivals = select.poll()
        self.state = ChannelState.OPEN

    def open(self) -> None:
        """Start to read from a connected socket. Only the driving thread may call it, once."""
        self._prepare()
        self._watch()

    def connect(self, address: Any) -> None:
        """Start to connect to a numeric address. Only the driving thread may call it, instead of `open`."""
        self._prepare()
        self.state = ChannelState.CONNECTING
        failure = self._sock.connect_ex(address)
        if failure and failure not in _IN_PROGRESS:
            self.close(OSError(failure, errno.errorcode.get(failure, "connect failed")))
            return
        self._watch()

    def _prepare(self) -> None:
        self._sock.setblocking(False)
        self._arrivals.register(self._sock, select.POLLIN)
        _tune(self._sock)
        self._reactor.on_stop.add(self._reactor_stopped)

    def has_input(self) -> bool:
        """Whether there is unread input, or the end of the input. Only the driving thread."""
        return self.state is not ChannelState.OPEN or bool(self._arrivals.poll(0))

    def send(self, data: bytes) -> bool:
        """Send, and queue what the socket does not take now. Any thread. False: the channel is not open any more."""
        with self._lock:
            return self._send_locked(data)

    def _send_locked(self, data: bytes) -> bool:
        if self.state is ChannelState.OPEN and not self._unsent.size:
            try:
                sent = self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as exc:
                self._close_locked(exc)
                return False
            if sent == len(data):
                return True
            self._unsent.add(data, sent)
            self._reactor.call_soon(self._watch)
        elif self.state is ChannelState.OPEN or self.state is ChannelState.CONNECTING:
            self._unsent.add(data)
        else:
            return False
        if self._unsent.size > self._max_unsent:
            self._close_locked(SlowReader(f"the peer left {self._unsent.size} bytes unread"))
            return False
        return True

    def waiting_bytes(self) -> int:
        """How many bytes are in memory because the peer has not been able to take them yet. Any thread."""
        return self._unsent.held + sum(map(len, self._collected))

    def send_soon(self, data: bytes) -> None:
        """Send at the end of the current turn, in one write with the turn's other bytes. Only the driving thread.

        So the answers to pipelined requests share one write, which costs more than a small answer.
        """
        if not self._collected:
            self._reactor.call_soon(self._send_collected)
        self._collected.append(data)

    def _send_collected(self) -> None:
        collected = self._collected
        if collected:
            self.send(collected[0] if len(collected) == 1 else b"".join(collected))
            with self._lock:
                self._collected = []  # only now: until then they count as waiting

    def close(self, reason: BaseException | None = None) -> None:
        """Close the connection at once and drop unsent bytes. Any thread. Idempotent."""
        with self._lock:
            self._close_locked(reason)

    def close_when_sent(self) -> None:
        """Close as soon as the queued bytes are sent. Any thread. Idempotent."""
        if not self._reactor.in_driver():
            # The bytes of `send_soon` go first: they are sent at the end of the current turn.
            self._reactor.call_soon(self.close_when_sent)
            return
        self._send_collected()
        with self._lock:
            self._closing = True
            if not self._unsent.size:
                self._close_locked(None)

    def finish(self, linger_s: float = LINGER_S, last: bytes = b"") -> None:
        """Send what is queued and `last`, then close. Any thread. From now on the channel delivers no input and drops
        the bytes of other sends.

        The last bytes often say why the connection ends. The kernel resets a connection that is closed with unread
        input, which would lose them. So the channel reads and discards input, for at most `linger_s`.
        """
        if self._reactor.in_driver():
            self._send_collected()
        with self._lock:
            if self.state is ChannelState.OPEN and last:
                self._send_locked(last)
            if self.state is ChannelState.OPEN:
                self.state = ChannelState.FINISHING
                self._reactor.call_soon(self._start_linger, linger_s)
            elif self.state is ChannelState.CONNECTING:
                self._close_locked(None)

    def _close_locked(self, reason: BaseException | None) -> None:
        if self.state is not ChannelState.CLOSED:
            self.state = ChannelState.CLOSED
            if reason is not None:
                reason.__traceback__ = None  # its frames refer to this channel and to bytes that are not sent
            self._reason = self._reason or reason
            self._unsent.clear()  # at once: the reactor may take a while
            self._reactor.call_soon(self._end, reason)

    def _end(self, reason: BaseException | None) -> None:
        """Free the socket and call `on_close`. On the driving thread, once."""
        if self._ended:
            return
        self._ended = True
        self._release()
        if self._linger is not None:
            self._linger.cancel()
        self._reactor.on_stop.discard(self._reactor_stopped)
        self._on_close(self._reason or reason)

    def _release(self) -> None:
        with self._lock:
            self.state = ChannelState.CLOSED
            self._reactor.watch(self._sock, 0, self._ready)
            self._sock.close()
            self._unsent.clear()

    def _reactor_stopped(self) -> None:
        self._end(ClosedError("the reactor has stopped"))

    def _start_linger(self, linger_s: float) -> None:
        if self.state is ChannelState.FINISHING and self._linger is None:
            self._linger = self._reactor.call_later(linger_s, self.close)
            self._shut_writing()
            self._watch()

    def _shut_writing(self) -> None:
        with self._lock:
            if self._unsent.size or self.state is not ChannelState.FINISHING:
                return
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._close_locked(None)

    def _watch(self) -> None:
        """Set the selector's interest by the state. Only the driving thread."""
        if self.state is ChannelState.CLOSED:
            return
        interest = self._interest_wanted()
        if interest != self._interest:
            self._interest = interest
            self._reactor.watch(self._sock, interest, self._ready)

    def _interest_wanted(self) -> int:
        deaf = self._input_ended and self.state is ChannelState.OPEN
        return self._write_interest() if deaf else self._write_interest() | selectors.EVENT_READ

    def _write_interest(self) -> int:
        return selectors.EVENT_WRITE if self._unsent.size or self.state is ChannelState.CONNECTING else 0

    def _ready(self, mask: int) -> None:
        if self.state is ChannelState.CLOSED:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                self._write_ready()
            if mask & selectors.EVENT_READ:
                self._read_ready()
        except OSError as exc:
            self.close(exc)
        except Exception as exc:
            self.close(exc)
            raise

    def _read_ready(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self._on_input_ended()
            self._watch()
        elif self.state is ChannelState.OPEN:
            self._on_data(data)

    def _on_input_ended(self) -> None:
        """The peer sends nothing more, but may still read."""
        self._input_ended = True
        if self._on_end is None or self.state is not ChannelState.OPEN:
            self.close()
        else:
            self._on_end()

    def _write_ready(self) -> None:
        if self.state is ChannelState.CONNECTING:
            failure = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failure:
                self.close(OSError(failure, errno.errorcode.get(failure, "connect failed")))
                return
            with self._lock:
                self.state = ChannelState.OPEN
        with self._lock:
            for _ in range(SENDS_PER_TURN):
                if not self._unsent.size:
                    break
                try:
                    self._unsent.send(self._sock)
                except (BlockingIOError, InterruptedError):
                    break
                self._taken_at = self._reactor.clock()
            if self._closing and not self._unsent.size:
                self._close_locked(None)
        if self.state is ChannelState.FINISHING:
            self._shut_writing()
        self._watch()


def _tune(sock: socket.socket) -> None:
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A peer whose machine died sends nothing, not even a reset. The kernel's probes detect it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
