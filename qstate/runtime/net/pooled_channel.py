"""A connection that the threads of a pool read. A reactor does the rest.

Rules of this module: those of `channel`, and reads from several threads: one at a time, in order, and none after the
descriptor is closed, because another connection may have its number then.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable
from time import thread_time
from typing import Protocol

from qstate.errors import TlsFailed
from qstate.host.line_limit import limited
from qstate.runtime.net.channel import RECEIVE_BYTES, Channel, ChannelState, SlowReader
from qstate.runtime.net.reactor import Reactor, Timer
from qstate.runtime.net.reading_pool import ReadingPool
from qstate.tls import TlsStream

__all__ = ["Meter", "PooledChannel"]

log = limited(logging.getLogger(__name__))

#: With more unsent bytes than this the channel stops reading until the peer has read most of them.
HIGH_WATER_BYTES = 1024 * 1024

Work = Callable[[], None]


class Meter(Protocol):
    """Measures what a connection costs, and says when it costs too much."""

    def may_read(self) -> bool:
        """Whether the channel is read now. If not, call its `read_later` when that has changed. Any thread."""

    def charge(self, seconds: float) -> None:
        """The channel has used so much time of a processor, with that of `on_data` and its work. Any thread."""

    def woken_for_a_part(self) -> None:
        """A thread was woken for bytes that decrypt to nothing yet. Any thread."""


class PooledChannel(Channel):
    """A channel whose `on_data` runs on a thread of the pool, one call at a time.

    `on_data` may return work for the same thread. The work may take long: it runs once other threads may read and close
    the connection. `on_data` may also call `hold`. After `release` the channel calls `on_data` with no bytes first, so
    that it can process what it kept. With `yield_turn`, other connections are read before that.

    While `bulky`, such connections are read one after the other, 64 KiB at a time, and all others between any two of
    these reads. So a hundred large requests that arrive together delay a small one by one read.

    With more than `HIGH_WATER_BYTES` unsent the channel stops reading (back-pressure). `is_congested` is then True, and
    the caller should send nothing until `on_room`, which runs on the reactor's thread. If the peer reads none of the
    unsent bytes for `patience_s`, the channel closes with `SlowReader`.

    The channel tells its `meter` what its reads and later writes cost, and asks it before it reads.

    With `tls` the peer's bytes are TLS's, those of `on_data` and `send` are plain. Bytes that are sent before the
    handshake is complete are dropped. When TLS fails, the channel finishes, and `on_close` has the `TlsFailed`.
    """

    __slots__ = (
        "_held",
        "_high_water",
        "_kept",
        "_meter",
        "_on_room",
        "_patience_s",
        "_paused",
        "_pool",
        "_reading",
        "_unread",
        "bulky",
        "tls",
    )

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        pool: ReadingPool,
        meter: Meter,
        on_data: Callable[[bytes], Work | None],
        on_room: Callable[[], None],
        on_end: Callable[[], None],
        on_close: Callable[[BaseException | None], None],
        max_unsent_bytes: int,
        patience_s: float,
        tls: TlsStream | None = None,
    ) -> None:
        super().__init__(
            reactor, sock, on_data=on_data, on_end=on_end, on_close=on_close, max_unsent_bytes=max_unsent_bytes
        )
        self.tls = tls
        #: Whether the input is a part of a large message. Set it only in `on_data`.
        self.bulky = False
        self._pool = pool
        self._meter = meter
        self._on_room = on_room
        self._patience_s = patience_s
        self._high_water = min(HIGH_WATER_BYTES, max_unsent_bytes // 2)
        # Guards reading, delivering, and closing the socket.
        self._reading = threading.Lock()
        self._paused = False
        self._held = False
        self._kept = False
        self._unread: Timer | None = None

    def open(self) -> None:
        self._prepare()
        self._pool.add(self._sock.fileno(), self)

    def hold(self) -> None:
        """Read and deliver nothing until `release`. Call it only in `on_data`."""
        self._held = True

    def release(self) -> None:
        """End `hold`. Any thread. Idempotent."""
        if self._held:
            self._held = False
            self._pool.recall(self)

    def while_unread(self, action: Callable[[], object]) -> None:
        """Run `action()` while no thread is in `on_data`, which may take a moment. Not in `on_data`."""
        with self._reading:
            action()

    def if_unread(self, action: Callable[[], object]) -> None:
        """Run `action()`, unless a thread is in `on_data`. It does not wait. `action` may call what `on_data` may."""
        if self._reading.acquire(blocking=False):
            try:
                action()
            finally:
                self._reading.release()

    def yield_turn(self) -> None:
        """Read nothing more until `on_data` was called with no bytes, soon but after others. Call it only in `on_data`.

        So input that takes long to process is processed in parts, and waits in the kernel meanwhile.
        """
        self._kept = True
        self._pool.recall(self)

    def read_later(self) -> None:
        """Have a thread of the pool come by, which also does the work that waits. Any thread."""
        self._pool.recall(self)

    def read_ready(self, ended: bool) -> None:
        began, work = thread_time(), None
        with self._reading:
            if self._kept or not self._may_read():
                return
            if self.bulky:
                self.yield_turn()
                return
            work, more = self._read()
            if (ended or more) and not self._kept and self._may_read():
                self._pool.arm(self._sock.fileno())
        self._do(work)
        self._meter.charge(thread_time() - began)

    def read_on(self) -> None:
        began, work, more = thread_time(), None, False
        with self._reading:
            self._kept = False
            if not self._may_read():
                return
            if self.bulky:
                work, more = self._read()
            else:
                work = self._deliver(b"")
            if not self._kept and self._may_read():
                if more and self.bulky:
                    self.yield_turn()
                else:
                    self._pool.arm(self._sock.fileno())
        self._do(work)
        self._meter.charge(thread_time() - began)

    def _read(self) -> tuple[Work | None, bool]:
        """Read once and deliver. Returns the work of `on_data`, and whether the kernel may have more."""
        try:
            data = self._sock.recv(RECEIVE_BYTES)
            if not data:
                self._on_input_ended()
        except (BlockingIOError, InterruptedError):
            return None, False
        except Exception as exc:
            self._fail(exc)
            return None, False
        if not data:
            return None, False
        return self._deliver(data), len(data) == RECEIVE_BYTES

    def _deliver(self, data: bytes) -> Work | None:
        try:
            if self.state is ChannelState.OPEN:
                plain = data if self.tls is None or not data else self._decrypted(self.tls, data)
                if plain or not data:
                    work: Work | None = self._on_data(plain)
                    return work
                self._meter.woken_for_a_part()
        except Exception as exc:
            self._fail(exc)
        return None

    def _decrypted(self, tls: TlsStream, data: bytes) -> bytes:
        # The peer's bytes may change how the next ones are encrypted, so other threads must not send meanwhile.
        with self._lock:
            try:
                return tls.receive(data)
            finally:
                answer = tls.outgoing()
                if answer:
                    super()._send_locked(answer)

    def _send_locked(self, data: bytes) -> bool:
        return super()._send_locked(data if self.tls is None else self.tls.send(data))

    def _do(self, work: Work | None) -> None:
        if work is not None:
            try:
                work()
            except Exception as exc:
                self._fail(exc)

    def _fail(self, exc: Exception) -> None:
        """An error ends this connection and no other."""
        if isinstance(exc, TlsFailed):
            self._reason = exc
            self.finish()
            return
        if not isinstance(exc, OSError):
            log.error("a connection failed and is closed", exc_info=exc)
        self.close(exc)

    def _may_read(self) -> bool:
        """Whether to read now. Code that makes it True again calls `ReadingPool.recall`. Call it under `_reading`."""
        if self._ended or self._paused or self._held or self.state is ChannelState.CLOSED:
            return False
        if self._input_ended and self.state is ChannelState.OPEN:
            return False
        if self._unsent.size > self._high_water and self.is_congested():
            return False
        return self.state is not ChannelState.OPEN or self._meter.may_read()

    def _ready(self, mask: int) -> None:
        began = thread_time()
        super()._ready(mask)
        self._meter.charge(thread_time() - began)

    def is_congested(self) -> bool:
        """Whether the peer should read before more is sent. Any thread."""
        if self._unsent.size <= self._high_water:
            return False
        # The reactor removes sent bytes under the lock, so it sees this pause afterwards.
        with self._lock:
            self._paused = self._unsent.size > self._high_water and self.state is ChannelState.OPEN
            return self._paused

    def pause(self) -> bool:
        """Read nothing until the peer has read more, and call `on_room` then. Any thread. False: it has read all."""
        with self._lock:
            self._paused = self.state is ChannelState.OPEN and (self._unsent.size > 0 or bool(self._collected))
            return self._paused

    def _send_collected(self) -> None:
        super()._send_collected()
        if self._paused:
            self._watch()

    def _interest_wanted(self) -> int:
        with self._lock:
            over = self.state is not ChannelState.OPEN  # input is read and discarded
            resume = self._paused and (over or self._unsent.size <= self._high_water // 4)
            if resume:
                self._paused = False
        if resume:
            self._on_room()
            self._pool.recall(self)
        if over:
            self.release()
        if self._unsent.size and not self._interest & selectors.EVENT_WRITE:
            self._taken_at = self._reactor.clock()
            if self._unread is None:
                self._unread = self._reactor.call_later(self._patience_s, self._check_reader)
        return self._write_interest()

    def _check_reader(self) -> None:
        self._unread = None
        if not self._unsent.size:
            return
        left_s = self._taken_at + self._patience_s - self._reactor.clock()
        if left_s > 0:
            self._unread = self._reactor.call_later(left_s, self._check_reader)
        else:
            self.close(SlowReader(f"the peer read none of {self._unsent.size} bytes for {self._patience_s:g} s"))

    def _release(self) -> None:
        with self._reading:
            self._pool.remove(self._sock.fileno())
            super()._release()
        if self._unread is not None:
            self._unread.cancel()
