"""Calls in both directions over one authenticated connection: the control plane inside one job.

Rules of this module: it carries pickled calls between processes of one job, over connections of `secure_socket`. It
does not know what the calls mean. The query port does not use it.

A peer has one reader thread. It runs the handlers of incoming calls in order. Slow handlers, and those that call back
over the same connection, are in `threaded` and get a thread of their own, because the reader would wait for itself.

Every host on its network can connect to a listener. So it keeps a bounded number of unauthenticated connections for a
bounded time. When all places are taken, the oldest connection is closed: a process of the job needs its place for some
milliseconds only. A connection that cannot be served now (no thread, no file descriptor) waits.
"""

from __future__ import annotations

import logging
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from struct import Struct
from typing import Any

from qstate.errors import JobError, QStateError
from qstate.host.line_limit import limited
from qstate.runtime.control.secure_socket import CONTROL, SecureSocket, accept_secure, open_secure
from qstate.runtime.control.tls_records import TamperedConnection

__all__ = ["RpcListener", "RpcPeer", "connect"]

log = limited(logging.getLogger(__name__))

_LENGTH = Struct(">Q")
#: The largest message. It may carry a user's function; a larger message is an error.
MAX_MESSAGE_BYTES = 1 << 30

#: Connections that have not authenticated yet.
MAX_UNAUTHENTICATED = 256
#: The pause after the system has refused a file descriptor or a thread.
PAUSE_S = 0.1

_CALL, _RETURN, _RAISE = 0, 1, 2


class RpcPeer:
    """One end of a connection: `call` the other end's methods, answer its calls with `handlers`.

    `handlers` maps method names to callables; those in `threaded` run on a thread of their own. `on_close` is
    called once, from the reader thread, with this peer.
    """

    def __init__(
        self,
        connection: SecureSocket,
        handlers: dict[str, Callable[..., Any]],
        *,
        threaded: frozenset[str] = frozenset(),
        on_close: Callable[[RpcPeer], None] | None = None,
    ) -> None:
        self._connection = connection
        self._sock = connection.socket
        self._handlers = handlers
        self._threaded = threaded
        self._on_close = on_close
        self._send_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._next_id = 0
        self._closed = False
        self._reader = threading.Thread(target=self._read, name="qstate-rpc", daemon=True)

    def start(self) -> RpcPeer:
        self._reader.start()
        return self

    @property
    def local_host(self) -> str:
        """The address by which this process reaches the peer."""
        return str(self._sock.getsockname()[0])

    def call(self, method: str, *args: Any, timeout_s: float = 30.0) -> Any:
        """The result of the other end's method. Raises its QStateError, `ConnectionError` when the connection ends, or
        `TimeoutError`."""
        future = self.submit(method, *args)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            raise TimeoutError(f"no answer to {method!r} within {timeout_s} s") from None

    def cast(self, method: str, *args: Any) -> None:
        """Call without waiting for a result. The other end logs a failure; a lost connection is ignored."""
        self.submit(method, *args)

    def close(self) -> None:
        """End the connection; waiting calls fail with ConnectionError. Idempotent."""
        with self._state_lock:
            self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("connection was gone already")
        if threading.current_thread() is not self._reader and self._reader.is_alive():
            self._reader.join(5.0)
        elif not self._reader.ident:  # never started, so the reader does not close it
            self._sock.close()

    def submit(self, method: str, *args: Any) -> Future[Any]:
        """Call without waiting. The future gets the result, or the error that `call` raises. Do not cancel it."""
        future: Future[Any] = Future()
        with self._state_lock:
            self._next_id += 1
            call_id = self._next_id
            self._waiting[call_id] = future
        try:
            if self._closed:
                raise ConnectionError("the control connection is closed")
            self._send((_CALL, call_id, method, args))
        except BaseException as exc:
            with self._state_lock:
                unanswered = self._waiting.pop(call_id, None)
            if not isinstance(exc, ConnectionError):
                raise
            if unanswered is not None:  # else the reader has noticed the end, too
                unanswered.set_exception(exc)
        return future

    def _send(self, message: tuple[Any, ...]) -> None:
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            with self._send_lock:
                self._connection.sendall(_LENGTH.pack(len(data)), data)
        except OSError as exc:
            raise ConnectionError(f"the control connection broke: {exc}") from exc

    def _read(self) -> None:
        ended = ConnectionError("the control connection ended before the answer")
        try:
            while True:
                (size,) = _LENGTH.unpack(self._connection.receive_exactly(_LENGTH.size))
                if size > MAX_MESSAGE_BYTES:
                    raise ConnectionError(f"a control message of {size} bytes is over the limit")
                self._dispatch(pickle.loads(self._connection.receive_exactly(size)))
        except TamperedConnection as exc:
            log.warning("a control connection is closed: %s", exc)
            ended = exc
        except OSError as exc:
            log.debug("control connection ended: %s", exc)
        except Exception:  # unpickling may raise anything; the connection is then out of step
            log.exception("a control message could not be read")
        finally:
            self._ended(ended)

    def _dispatch(self, message: tuple[Any, ...]) -> None:
        kind, call_id, what, args = message
        if kind == _CALL:
            if what in self._threaded:
                threading.Thread(
                    target=self._answer, args=(call_id, what, args), name=f"qstate-rpc-{what}", daemon=True
                ).start()
            else:
                self._answer(call_id, what, args)
            return
        with self._state_lock:
            future = self._waiting.pop(call_id, None)
        if future is None:
            return
        if kind == _RETURN:
            future.set_result(what)
        else:
            future.set_exception(what)

    def _answer(self, call_id: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            answer: tuple[Any, ...] = (_RETURN, call_id, self._handlers[method](*args), None)
        except QStateError as exc:
            answer = (_RAISE, call_id, exc, None)
        except Exception as exc:  # the caller needs every error
            log.exception("control call %s failed", method)
            answer = (_RAISE, call_id, JobError(f"{method} failed: {type(exc).__name__}: {exc}"), None)
        try:
            self._send(answer)
        except ConnectionError:
            log.debug("the caller of %s is gone", method)
        except Exception as exc:
            log.exception("the answer to control call %s cannot be sent", method)
            failure = JobError(f"{method} failed: its answer cannot be sent: {exc}")
            with suppress(ConnectionError):
                self._send((_RAISE, call_id, failure, None))

    def _ended(self, why: ConnectionError) -> None:
        with self._state_lock:
            self._closed = True
            waiting, self._waiting = self._waiting, {}
        with suppress(OSError):  # wakes a thread that is blocked in send
            self._sock.shutdown(socket.SHUT_RDWR)
        with self._send_lock:  # no thread may use the descriptor's number after a new connection has got it
            self._sock.close()
        for future in waiting.values():
            future.set_exception(why)
        if self._on_close is not None:
            self._on_close(self)


class RpcListener:
    """Accepts and authenticates connections of one job and calls `accepted` with each one, on a thread of its own.

    `address` is a (host, port) pair, the path of a Unix socket, or a socket that listens; `channel` is the name that
    peers must ask for.
    """

    def __init__(
        self,
        address: tuple[str, int] | str | socket.socket,
        secret: bytes,
        accepted: Callable[[SecureSocket], None],
        *,
        channel: str = CONTROL,
    ) -> None:
        self._secret = secret
        self._accepted = accepted
        self._channel = channel
        #: The connections that have not authenticated yet, the oldest first; with the condition's lock held.
        self._strangers: dict[socket.socket, None] = {}
        self._places = threading.Condition()
        self._closed = threading.Event()
        self._sock = address if isinstance(address, socket.socket) else _listen(address)
        #: The TCP port, also after `close`; 0 for a Unix socket.
        self.port = 0 if isinstance(address, str) else int(self._sock.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="qstate-rpc-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more. Idempotent."""
        self._closed.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(5.0)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                self._accept_one()
            except (OSError, RuntimeError) as exc:  # RuntimeError: no thread can be started
                if not self._closed.wait(PAUSE_S):
                    log.warning("cannot accept control connections for the moment: %s", exc)

    def _accept_one(self) -> None:
        sock, _ = self._sock.accept()
        self._give_place(sock)
        try:
            threading.Thread(target=self._welcome, args=(sock,), name="qstate-rpc-welcome", daemon=True).start()
        except RuntimeError:
            self._free_place(sock)
            sock.close()
            raise

    def _give_place(self, sock: socket.socket) -> None:
        with self._places:
            if len(self._strangers) >= MAX_UNAUTHENTICATED:
                with suppress(OSError):  # its thread then ends
                    next(iter(self._strangers)).shutdown(socket.SHUT_RDWR)
            self._places.wait_for(lambda: len(self._strangers) < MAX_UNAUTHENTICATED)
            self._strangers[sock] = None

    def _free_place(self, sock: socket.socket) -> None:
        with self._places:
            del self._strangers[sock]
            self._places.notify()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            try:
                if sock.family != socket.AF_UNIX:
                    _prepare(sock)
                connection = accept_secure(sock, self._secret, self._channel)
            finally:
                self._free_place(sock)
            self._accepted(connection)
        except (OSError, QStateError) as exc:
            log.warning("a control connection was refused: %s", exc)
            sock.close()
        except BaseException:
            sock.close()
            raise


def connect(host: str, port: int, secret: bytes, *, timeout_s: float = 5.0) -> SecureSocket:
    """A connection to a job manager. Raises `OSError` or `FencedError`."""
    sock = socket.create_connection((host, port), timeout=timeout_s)
    try:
        _prepare(sock)
        return open_secure(sock, secret, CONTROL)
    except (OSError, QStateError):
        sock.close()
        raise


def _listen(address: tuple[str, int] | str) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    return socket.create_server(address, family=family, backlog=128)


def _prepare(sock: socket.socket) -> None:
    """Send small messages at once, and detect, if late, a peer whose host is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
