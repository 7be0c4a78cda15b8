"""The program under test: started, asked line by line, and ended again.

Rules of this module: it knows the line protocol (docs/reference/client-driver.md), not what laws want of a client.
Every wait is bounded. A program that does not answer, says what is no answer, or exits fails with `DriverFailure`,
which names it and shows the end of what it wrote to stderr. It ends only the process group that it started.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from itertools import count
from typing import Any

from qstate_conformance.client.frames import CODES
from qstate_conformance.client.tagged import tagged

__all__ = [
    "FEATURES",
    "GRACE_S",
    "LINE_PROTOCOL",
    "Client",
    "Driver",
    "DriverFailure",
    "Outcome",
    "Pending",
    "driver_for",
    "end_drivers",
]

LINE_PROTOCOL = 1
#: What a driver may declare in its description. Laws about what is not declared are skipped.
FEATURES = (
    *("async", "batch", "demands", "parts", "retry", "scan", "subscribe"),
    *("direct", "reached", "serializer", "tls"),
)
#: What a client may fail with that is no failure code of the protocol.
OWN_CODES = ("INVALID", "UNREADABLE", "CLOSED")
#: How much later than it must an operation may end, on a machine that has other things to do.
GRACE_S = 3.0
#: How long a program may take from its start to its description.
START_S = 30.0
#: How long a program may take to exit when its input has ended.
EXIT_S = 5.0
#: The deadline of an operation that has no reason for another one.
TIMEOUT_S = 5.0
_SHOWN_BYTES = 2000


class DriverFailure(Exception):
    """The program under test breaks the line protocol, so the suite cannot judge its client."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of an operation: its `body`, or `code`, the name of a failure code or one of `OWN_CODES`."""

    body: Mapping[str, Any]
    code: str | None = None
    text: str = ""

    @property
    def failed(self) -> bool:
        return self.code is not None

    @property
    def found(self) -> bool:
        """Of a get: whether it gave a value."""
        return self.code is None and bool(self.body.get("found"))

    @property
    def value(self) -> Any:
        """Of a get: the value as the driver reported it; None for none."""
        return self.body.get("value")


class Pending:
    """An operation that was sent to the driver and has no answer yet."""

    def __init__(self, driver: Driver, line: str, answer: Future[Mapping[str, Any]], deadline: float) -> None:
        self._driver = driver
        self._line = line
        self._answer = answer
        self.deadline = deadline

    @property
    def done(self) -> bool:
        return self._answer.done()

    def answer(self) -> Mapping[str, Any]:
        """The answer as it came. Raises `DriverFailure` when none has by its deadline and the time of grace."""
        try:
            return self._answer.result(max(0.0, self.deadline + GRACE_S - time.monotonic()))
        except FutureTimeout:
            raise self._driver.failed(f"gave no answer to {self._line}") from None

    def outcome(self) -> Outcome:
        """The outcome. Raises `DriverFailure` as `answer` does.

        A code that no client may report breaks the law that asked.
        """
        answer = self.answer()
        body = answer.get("ok", {})
        error = answer.get("error") or body.get("error")
        if error is None:
            return Outcome(body)
        code, text = str(error.get("code")), str(error.get("message", ""))
        assert code in CODES or code in OWN_CODES, f"{self._line} failed with {code}: {text}"
        return Outcome(body, code, text)


class Client:
    """One client object in the program. A client that connects when it is opened may fail then: every later get of it
    has that failure as its outcome.
    """

    def __init__(self, driver: Driver, opened: Outcome) -> None:
        self._driver = driver
        self._opened = opened
        self.number = opened.body.get("client")

    def get(
        self, key: Any, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Outcome:
        """Get one key. `more`: namespace, isolation, min_epoch, max_staleness_ms, keep."""
        if self._opened.failed:
            return self._opened
        return self.start_get(key, job=job, state=state, timeout_s=timeout_s, **more).outcome()

    def start_get(
        self, key: Any, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Pending:
        """`get` without waiting."""
        return self._start("get", timeout_s, key=tagged(key), job=job, state=state, **_tagged_namespace(more))

    def get_many(
        self, keys: Sequence[Any], *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Outcome:
        """Get several keys in one call (feature `batch`)."""
        if self._opened.failed:
            return self._opened
        asked = [tagged(key) for key in keys]
        return self._start("get_many", timeout_s, keys=asked, job=job, state=state, **_tagged_namespace(more)).outcome()

    def scan(self, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any) -> Outcome:
        """Scan a state (feature `scan`). `more`: prefix, namespace, key_groups, limit, show, isolation, min_epoch.

        The body of the outcome has the entries, also those that came before the scan failed.
        """
        if self._opened.failed:
            return self._opened
        return self.start_scan(job=job, state=state, timeout_s=timeout_s, **more).outcome()

    def start_scan(
        self, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Pending:
        """`scan` without waiting."""
        fields = {**more, "prefix": tagged(more["prefix"])} if "prefix" in more else more
        return self._start("scan", timeout_s, job=job, state=state, **_tagged_namespace(fields))

    def get_part(
        self, key: Any, part: str, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Outcome:
        """Get a part of the value of one key (feature `parts`): `entries`, `page`, `slice`, `size`, or the whole value
        in pieces, `large`.

        `more`: map_keys, after, limit, start, stop, namespace, isolation, min_epoch.
        """
        if self._opened.failed:
            return self._opened
        return self.start_part(key, part, job=job, state=state, timeout_s=timeout_s, **more).outcome()

    def start_part(
        self, key: Any, part: str, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Pending:
        """`get_part` without waiting."""
        fields = {name: tagged(value) if name in ("map_keys", "after") else value for name, value in more.items()}
        named = _tagged_namespace(fields)
        return self._start("get_part", timeout_s, key=tagged(key), part=part, job=job, state=state, **named)

    def subscribe(
        self, until_epoch: int, *, job: str = "job", state: str = "state", timeout_s: float = TIMEOUT_S, **more: Any
    ) -> Outcome:
        """Follow a state up to an epoch (feature `subscribe`). `more`: prefix, namespace, from_epoch.

        The body of the outcome has the batches, also those that came before the subscription failed.
        """
        if self._opened.failed:
            return self._opened
        fields = {**more, "prefix": tagged(more["prefix"])} if "prefix" in more else more
        fields = {**fields, "until_epoch": until_epoch}
        return self._start("subscribe", timeout_s, job=job, state=state, **_tagged_namespace(fields)).outcome()

    def describe(self, job: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Outcome:
        """List the jobs, or the states of a job."""
        return self._opened if self._opened.failed else self.start_describe(job, timeout_s=timeout_s).outcome()

    def start_describe(self, job: str | None, *, timeout_s: float = TIMEOUT_S) -> Pending:
        """`describe` without waiting."""
        return self._start("describe", timeout_s, job=job)

    def mutate(self, view: Any, *, timeout_s: float = TIMEOUT_S) -> Outcome:
        """Try to change a view that a get has kept."""
        return self._start("mutate", timeout_s, view=view).outcome()

    def close(self) -> None:
        """Close the client; operations that wait for an answer fail."""
        if not self._opened.failed:
            self._start("close", TIMEOUT_S).outcome()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._driver.broken:
            self.close()

    def _start(self, operation: str, timeout_s: float, **fields: Any) -> Pending:
        if self._opened.failed:
            raise AssertionError(f"the client could not be opened: {self._opened.code}: {self._opened.text}")
        timeout_ms = round(timeout_s * 1000)
        return self._driver.start(operation, timeout_s, client=self.number, timeout_ms=timeout_ms, **fields)


class Driver:
    """The program, from its start until `end`."""

    def __init__(self, command: Sequence[str]) -> None:
        self.name = shlex.join(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True
            )
        except OSError as exc:
            self._errors.close()
            raise DriverFailure(f"{self.name} cannot be started: {exc}") from exc
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Mapping[str, Any]]] = {}
        self._numbers = count(1)
        self._why: str | None = None
        self._reader = threading.Thread(target=self._read, name="conformance driver", daemon=True)
        self._reader.start()
        try:
            self._description = self._described()
        except DriverFailure:
            self.end()
            raise

    @property
    def broken(self) -> bool:
        """Whether the program can no longer answer."""
        return self._why is not None

    @property
    def features(self) -> frozenset[str]:
        """What the driver declares."""
        return frozenset(self._description["features"])

    def open(self, address: tuple[str, int], *, timeout_s: float = TIMEOUT_S, **more: Any) -> Client:
        """A client of the proxy at that address. `more`: token (bytes), direct (bool or None), tls (a map)."""
        host, port = address
        fields = {"token": tagged(more.get("token")), "direct": more.get("direct", False)}
        if "tls" in more:
            fields["tls"] = more["tls"]
        timeout_ms = round(timeout_s * 1000)
        opened = self.start("open", timeout_s, host=host, port=port, timeout_ms=timeout_ms, **fields).outcome()
        return Client(self, opened)

    def start(self, operation: str, timeout_s: float, **fields: Any) -> Pending:
        """Send a line. Raises `DriverFailure`."""
        number = next(self._numbers)
        line = json.dumps({"id": number, "op": operation, **fields})
        answer: Future[Mapping[str, Any]] = Future()
        stdin = self._process.stdin
        assert stdin is not None
        with self._lock:
            if self._why is not None:
                raise self.failed(self._why)
            self._waiting[number] = answer
            try:
                stdin.write(line.encode() + b"\n")
                stdin.flush()
            except OSError:
                # It has closed its input; why is for the reader to find out.
                pass
        shown = line if len(line) < 300 else line[:300] + "..."
        return Pending(self, shown, answer, time.monotonic() + timeout_s)

    def failed(self, why: str) -> DriverFailure:
        """The failure, and the program's last words; from now on it counts as broken."""
        self._why = self._why or why
        size = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), _SHOWN_BYTES, max(0, size - _SHOWN_BYTES)).decode(errors="replace")
        last_words = f"\nThe end of its stderr:\n{said}" if said.strip() else ""
        return DriverFailure(f"{self.name} {why}{last_words}")

    def end(self) -> None:
        """Close the program's input and let it exit; kill its process group when it does not. Idempotent."""
        if self._errors.closed:
            return
        process = self._process
        self._why = self._why or "was ended"
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_S if "was ended" in self._why else 0.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._reader.join(EXIT_S)
        process.stdout.close()  # type: ignore[union-attr]
        self._errors.close()

    def _described(self) -> Mapping[str, Any]:
        """The program's answer to `hello`. Raises `DriverFailure` when a field is not what it must be."""
        answer = self.start("hello", START_S).answer()
        if "error" in answer:
            raise self.failed(f"answered hello with the error {_shown(answer['error'])}; expected its description")
        found: Mapping[str, Any] = answer["ok"]
        protocol, client, features = (found.get(name) for name in ("protocol", "client", "features"))
        if type(protocol) is not int or protocol != LINE_PROTOCOL:
            raise self._misdescribed("protocol", protocol, str(LINE_PROTOCOL))
        if not isinstance(client, str) or not client:
            raise self._misdescribed("client", client, "the name and version of the client, as text")
        if not isinstance(features, list) or not all(isinstance(one, str) and one in FEATURES for one in features):
            raise self._misdescribed("features", features, f"an array of some of {', '.join(FEATURES)}")
        return found

    def _misdescribed(self, field: str, value: Any, expected: str) -> DriverFailure:
        return self.failed(f"described itself wrongly: {field} is {_shown(value)}, expected {expected}")

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        why = None
        for line in stdout:
            why = self._take(line)
            if why is not None:
                break
        if why is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_S)
            why = (
                f"has exited with code {self._process.returncode}"
                if self._process.returncode is not None
                else ("has closed its stdout")
            )
        with self._lock:
            self._why = self._why or why
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(self.failed(self._why))

    def _take(self, line: bytes) -> str | None:
        """Hand an answer to the operation that waits for it. Return what is wrong with the answer, if anything."""
        shown = line[:300]
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            return f"wrote a line that is no JSON: {shown!r}"
        if not _is_answer(found):
            return f"wrote a line that is no answer, which has an id and either ok or error, an object: {shown!r}"
        with self._lock:
            answer = self._waiting.pop(found["id"], None)
        if answer is None:
            return f"answered what it was not asked, or twice: {shown!r}"
        answer.set_result(found)
        return None


def _is_answer(found: Any) -> bool:
    if not isinstance(found, dict) or type(found.get("id")) is not int or ("ok" in found) == ("error" in found):
        return False
    return isinstance(found["ok"] if "ok" in found else found["error"], dict)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else text[:300] + "..."


_drivers: dict[tuple[str, ...], Driver] = {}


@contextlib.contextmanager
def driver_for(command: Sequence[str]) -> Iterator[Driver]:
    """The running program of a command: started when it is first needed, and again when it broke.

    One program at a time is kept, so that a run over several clients leaves none behind.
    """
    name = tuple(command)
    driver = _drivers.get(name)
    if driver is None or driver.broken:
        end_drivers()
        driver = _drivers[name] = Driver(name)
    try:
        yield driver
    finally:
        if driver.broken:
            end_drivers()


def end_drivers() -> None:
    """End every program that is still running."""
    while _drivers:
        _drivers.popitem()[1].end()


def _tagged_namespace(more: dict[str, Any]) -> dict[str, Any]:
    return {**more, "namespace": tagged(more["namespace"])} if "namespace" in more else more


atexit.register(end_drivers)
