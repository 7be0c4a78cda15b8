"""Clients with several proxies: real proxies in processes that are killed, stopped and started again under gets."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstate.client import QueryableStateClient
from qstate.errors import ConfigError, FailureCode, QueryError, Unavailable
from qstate.protocol.messages import Failure
from qstate.runtime.client.proxies import FIRST_PAUSE_S, LONGEST_PAUSE_S, Proxies, ResolvedAddresses
from tests.runtime.client.peer import Peer
from tests.runtime.client.real_job import KEYS, Asked, Job

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 10.0
#: From the loss of a proxy to the next answer: a killed one is noticed at once, a stopped one by a ping. Measured on a
#: quiet machine: 0.02 s and 0.8 s.
KILLED_S, STOPPED_S = 1.5, 3.0


class Proxy:
    """A proxy process that can be started again at the same address."""

    def __init__(self, tables: Path, host: str = "127.0.0.1", port: int = 0) -> None:
        self._tables = tables
        self.host, self.port = host, port
        self.start()

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def start(self) -> None:
        module = "tests.runtime.client.proxy_process"
        command = [sys.executable, "-m", module, self.host, str(self.port), str(self._tables)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().split()[1])

    def signal(self, number: int) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self.close()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Served:
    """A job's state servers in this process, and the file that the proxies find them by."""

    def __init__(self, job: Job, directory: Path) -> None:
        self.job = job
        self.tables = directory / "tables"
        self.publish()

    def publish(self) -> None:
        found: list[Any] = []
        for name in self.job.subtasks[0].ids:
            self.job.locate(name, found.append)
        new = self.tables.with_suffix(".new")
        new.write_bytes(pickle.dumps({table.state["name"]: table for table in found}))
        new.rename(self.tables)

    def move(self) -> None:
        """Give every state a new id, so that each location is stale."""
        for subtask in self.job.subtasks:
            subtask.register()
        self.publish()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    job = Job(tmp_path / "job", epoch=3)
    yield Served(job, tmp_path)
    job.close()


class Asking:
    """Threads that get keys without pause, each over a client of its own or one for all; the answers are checked."""

    def __init__(self, clients: list[Any]) -> None:
        self._clients = clients
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.answers = [0] * len(clients)
        self.wrong: list[Any] = []
        self.failures: list[QueryError] = []
        self.longest_s = 0.0
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(len(clients))]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT_S)

    def _ask(self, number: int) -> None:
        client, random = self._clients[number], Random(number)
        while not self._stop.is_set():
            key = random.randrange(len(KEYS))
            started_at = time.monotonic()
            try:
                found = client.get("job", "reducing", KEYS[key], isolation="committed", timeout_s=TIMEOUT_S).get()
            except QueryError as exc:
                self.failures.append(exc)
                found = None
            took_s = time.monotonic() - started_at
            with self._changed:
                self.longest_s = max(self.longest_s, took_s)
                if found is not None:
                    self.answers[number] += 1
                    if found != key:
                        self.wrong.append((key, found))
                self._changed.notify_all()

    def gap_s(self, more: int = 3) -> float:
        """How long it takes until each thread has `more` further answers."""
        started_at = time.monotonic()
        with self._changed:
            wanted = [count + more for count in self.answers]
            assert self._changed.wait_for(
                lambda: all(has >= wants for has, wants in zip(self.answers, wanted, strict=True)), 2 * TIMEOUT_S
            ), (self.answers, wanted, self.failures[-3:])
        return time.monotonic() - started_at


@pytest.mark.parametrize(("kind", "direct"), [("sync shared", None), ("asyncio", False)])
def test_clients_go_on_when_proxies_are_killed_stopped_and_started_again(
    served: Served, kind: str, direct: bool | None
) -> None:
    with ExitStack() as stack:
        first, second = (Proxy(served.tables) for _ in range(2))
        stack.callback(first.close)
        stack.callback(second.close)
        options: dict[str, Any] = {"proxies": [second.address], "direct": direct}
        if kind == "asyncio":
            clients = [stack.enter_context(Asked(first.address, **options)) for _ in range(3)]
        else:
            clients = [stack.enter_context(QueryableStateClient(*first.address, **options))] * 3
        asking = stack.enter_context(Asking(clients))
        asking.gap_s()
        for dies, lives in ((first, second), (second, first)):
            dies.signal(signal.SIGKILL)
            served.move()  # who asks the owners must look them up again
            assert asking.gap_s() < KILLED_S
            dies.start()
            lives.signal(signal.SIGSTOP)
            served.move()
            assert asking.gap_s() < STOPPED_S
            lives.signal(signal.SIGCONT)
            asking.gap_s()
        assert not asking.wrong
        assert {type(failure) for failure in asking.failures} <= {Unavailable}, asking.failures
        assert len(asking.failures) <= 2 * 3  # at most those that a killed proxy had been sent
        assert asking.longest_s < STOPPED_S


def test_a_name_with_several_addresses_is_several_proxies(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Proxy(served.tables)
    second = Proxy(served.tables, "127.0.0.2", first.port)
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> list[Any]:
        if host != "proxies.test":
            return list(real(host, port, *args, **options))
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        return [entry for ip in ("127.0.0.1", "127.0.0.2") for entry in real(ip, port, type=socket.SOCK_STREAM)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with ExitStack() as stack:
        stack.callback(first.close)
        stack.callback(second.close)
        address = ("proxies.test", first.port)
        clients = [
            stack.enter_context(QueryableStateClient(*address, direct=False)),
            stack.enter_context(Asked(address, direct=False)),
        ]
        asking = stack.enter_context(Asking(clients))
        asking.gap_s()
        for dies, lives in ((first, second), (second, first)):
            dies.signal(signal.SIGSTOP)
            assert asking.gap_s() < STOPPED_S
            dies.signal(signal.SIGCONT)
            lives.signal(signal.SIGKILL)
            assert asking.gap_s() < KILLED_S
            lives.start()
        assert not asking.wrong
        assert {type(failure) for failure in asking.failures} <= {Unavailable}


@pytest.mark.parametrize("code", [FailureCode.SHUTTING_DOWN, FailureCode.OVERLOADED])
def test_a_proxy_that_takes_no_requests_is_left_for_another_one(served: Served, code: FailureCode) -> None:
    proxy = Proxy(served.tables)
    with Peer(lambda request: [Failure(request.id, code, {})]) as declining, ExitStack() as stack:
        stack.callback(proxy.close)
        for make in (QueryableStateClient, lambda *address, **options: Asked(address, **options)):
            for seed in range(4):
                options: dict[str, Any] = {"proxies": [proxy.address], "random": Random(seed), "direct": False}
                with make(*declining.address, **options) as client:
                    started_at = time.monotonic()
                    assert client.get("job", "reducing", "key-7", isolation="committed").get() == 7
                    assert time.monotonic() - started_at < 1.0


def test_all_proxies_of_the_job_come_before_its_fallbacks(served: Served, tmp_path: Path) -> None:
    standby = Job(tmp_path / "standby", epoch=2)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody: tuple[str, int] = closed.getsockname()
    for make in (QueryableStateClient, lambda *address, **options: Asked(address, **options)):
        for seed in range(4):
            options: dict[str, Any] = {"proxies": [served.job.proxy.address], "fallback": [standby.proxy.address]}
            with make(*nobody, random=Random(seed), **options) as client:
                assert client.get("job", "reducing", "key-7", isolation="committed").epoch == 3
    assert standby.looked_up == 0
    standby.close()


def test_waiting_requests_connect_once_at_a_time_and_rarely() -> None:
    with _Closing() as first, Peer() as reached:
        client = QueryableStateClient(*first.address, proxies=[reached.address], direct=False, timeout_s=1.5)
        assert client.ping() > 0
        reached.close()
        with _Closing(reached.address[1]) as second, client, ThreadPoolExecutor(32) as threads:
            started_at, before = time.monotonic(), first.accepted
            found = list(threads.map(lambda number: _failure(client, f"key-{number}"), range(32)))
            assert 1.2 < time.monotonic() - started_at < 2.5
        assert {type(failure) for failure in found} == {Unavailable}
        for accepted in (first.accepted - before, second.accepted):
            assert 2 <= accepted <= 12  # without pauses it would be hundreds
        assert first.most_open == second.most_open == 1


def _failure(client: QueryableStateClient, key: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        client.get("job", "reducing", key)
    return caught.value


class _Closing:
    """A listener that lets each connection wait for a moment and then closes it, and counts."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address: tuple[str, int] = self._listener.getsockname()
        self.accepted = self.most_open = 0
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Closing:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.accepted += 1
                sock.settimeout(0.02)
                with sock, suppress(OSError):
                    sock.recv(1 << 16)  # the Hello
                    self._listener.settimeout(0.02)
                    with suppress(TimeoutError):
                        self._listener.accept()[0].close()
                        self.most_open = 2
                    self._listener.settimeout(None)
                self.most_open = max(1, self.most_open)


def test_proxies_have_pauses_that_grow_and_end() -> None:
    addresses = [("a", 1), ("b", 1)]
    proxies = Proxies(addresses, Random(1))
    (one,) = {proxies.choose(0.0)}
    assert one is not None
    other = addresses[1 - addresses.index(one)]
    proxies.failed(one, 0.0)
    assert proxies.choose(0.0) == other
    assert not proxies.hopeless
    proxies.failed(other, 0.0)
    assert proxies.hopeless
    assert proxies.choose(0.0) is None
    assert proxies.choose(FIRST_PAUSE_S) is not None
    now, pauses = 0.0, []
    for _ in range(12):
        proxies.failed(one, now)
        proxies.failed(other, now)
        free = next(at for at in (now + step / 100 for step in range(1000)) if proxies.choose(at) is not None)
        pauses.append(free - now)
        now = free
    assert max(pauses) <= LONGEST_PAUSE_S
    assert min(pauses[-3:]) >= LONGEST_PAUSE_S / 2 - 0.01
    proxies.reached(one)
    assert proxies.choose(now) == one
    assert not proxies.hopeless


def test_the_clients_of_one_list_begin_at_different_proxies() -> None:
    addresses = [("a", 1), ("b", 1), ("c", 1)]
    assert {Proxies(addresses, Random(seed)).choose(0.0) for seed in range(20)} == set(addresses)


def test_of_the_addresses_of_a_name_the_one_that_failed_last_comes_last() -> None:
    def entry(ip: str) -> tuple[Any, ...]:
        return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 9069))

    resolved = ResolvedAddresses()
    both = [entry("10.0.0.1"), entry("10.0.0.2")]
    assert resolved.ordered("name", both) == both
    assert resolved.several("name")
    resolved.failed("name", ("10.0.0.1", 9069), 1.0)
    assert resolved.ordered("name", both) == both[::-1]
    resolved.failed("name", ("10.0.0.2", 9069), 2.0)
    assert resolved.ordered("name", both) == both
    assert resolved.ordered("other", both[:1]) == both[:1]
    assert not resolved.several("other")


@pytest.mark.parametrize("given", ["host:9069", [("host",)], [("host", "9069")], [7]])
def test_a_list_of_proxies_is_checked(given: Any) -> None:
    with pytest.raises(ConfigError, match="proxies takes"):
        QueryableStateClient("localhost", 9069, proxies=given)
