"""Laws of a server that is killed and comes back on its port under scans, subscriptions, pieces and gets: what was
committed is given whole, once and of the epoch that it says, and only requests that were in flight fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from qstate.backends.contract import Change
from qstate.checkpoint.manifest import write_final
from qstate.client import QueryableStateClient
from qstate.errors import Unavailable
from tests.runtime.job.running_job import Background, until
from tests.runtime.serving.feeds import History, put

JOB, STATE, LARGE = "job", "lastTemperature", "large"
KEYS = [f"key {number:03}" for number in range(200)]
#: So small that a scan has many pages, and a large value many pieces.
MAX_FRAME = 16 * 1024
VALUE_BYTES, LARGE_BYTES = 500, 150_000
KILLS = 2
TIMEOUT_S = 30.0


def value_of(epoch: int, size: int) -> str:
    return f"{epoch:<8}" + "x" * size


class Written:
    """A checkpoint directory to which epochs are committed until the test ends."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._history = History(root)
        self._stop = threading.Event()
        self.committed = -1
        self.commit()
        self._work = Background(self._run)

    def commit(self) -> None:
        epoch = self.committed + 1
        self._history.commit(epoch, *self._changes(epoch))
        write_final(self._root, {"query": epoch})
        self.committed = epoch

    def _changes(self, epoch: int) -> Iterator[Change]:
        for key in KEYS:
            yield put(key, value_of(epoch, VALUE_BYTES))
        if epoch % 50 == 0:
            yield put(LARGE, value_of(epoch, LARGE_BYTES))

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.commit()

    def end(self) -> int:
        """The last epoch."""
        self._stop.set()
        self._work.result()
        return self.committed


@contextmanager
def serving(root: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`qstate serve` and its port; killed at the end."""
    command = ["serve", str(root), "--port", str(port), "--server-port", "0", "--interval", "0.02"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qstate", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TMPDIR": str(root.parent)},
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline().split(" at 127.0.0.1:")[1].split(";")[0])
    finally:
        process.kill()
        process.communicate()


class Reader:
    """One client that does one thing again and again, and counts what it did."""

    def __init__(self, port: int, read: Callable[[QueryableStateClient, Reader], None]) -> None:
        self._port, self._read = port, read
        self.stop = threading.Event()
        self.done = 0
        self.lost = 0
        self._work = Background(self._run)

    def _run(self) -> None:
        with QueryableStateClient("127.0.0.1", self._port, timeout_s=TIMEOUT_S, max_frame=MAX_FRAME) as client:
            while not self.stop.is_set():
                self._read(client, self)

    def end(self) -> None:
        self.stop.set()
        self._work.result()

    def check(self) -> None:
        """Raise what it has failed with."""
        if self._work.ended(0):
            self._work.result()


def scan(client: QueryableStateClient, reader: Reader) -> None:
    """Every key once, in order, with the value of the epoch that its view says. Epochs change only with the server."""
    found = list(client.scan(JOB, STATE, prefix="key", isolation="committed"))
    assert Counter(entry.key for entry in found) == Counter(KEYS)
    epochs = [entry.view.epoch for entry in found]
    assert [int(entry.view.value()[:8]) for entry in found] == epochs
    assert epochs == sorted(epochs) and len(set(epochs)) <= 1 + KILLS
    reader.done += 1


def get_many(client: QueryableStateClient, reader: Reader) -> None:
    try:
        found = client.get_many(JOB, STATE, KEYS[:20], isolation="committed")
    except Unavailable:  # it was in flight when the server was killed
        reader.lost += 1
        return
    assert all(int(view.value()[:8]) == view.epoch for view in found.values() if view is not None)
    assert None not in found.values()
    reader.done += 1


def get_large(client: QueryableStateClient, reader: Reader) -> None:
    try:
        found = client.get_large(JOB, STATE, LARGE, isolation="committed")
    except Unavailable:
        reader.lost += 1
        return
    text = found.value()
    assert text == value_of(int(text[:8]), LARGE_BYTES) and int(text[:8]) <= found.epoch
    reader.done += 1


class Subscriber:
    """Collects the epochs of the changes of each key, with that of its snapshot first."""

    def __init__(self) -> None:
        self.epochs: dict[str, list[int]] = {}
        self.complete = -1

    def __call__(self, client: QueryableStateClient, reader: Reader) -> None:
        with client.subscribe(JOB, STATE, prefix="key", patience_s=TIMEOUT_S) as subscription:
            while not reader.stop.is_set():
                batch = subscription.next_batch(timeout_s=1.0)
                for change in batch or ():
                    epoch = int(str(change.value)[:8])
                    assert epoch == change.epoch
                    self.epochs.setdefault(str(change.key), []).append(epoch)
                if batch is not None:
                    self.complete = batch.complete
                    reader.done += 1

    def await_epoch(self, epoch: int) -> None:
        until(lambda: self.complete >= epoch, "the subscriber has everything", TIMEOUT_S)


def test_readers_survive_a_server_that_is_killed_and_comes_back(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        written = Written(tmp_path / "checkpoint")
        cleanup.callback(written.end)
        subscriber, readers = Subscriber(), []
        port = 0
        for kill in range(KILLS + 1):
            with serving(tmp_path / "checkpoint", port) as (process, port):
                if not readers:
                    readers = [Reader(port, read) for read in (scan, get_many, get_large, subscriber)]
                    for reader in readers:
                        cleanup.callback(reader.end)
                await_progress(readers)
                if kill < KILLS:
                    process.kill()
                    continue
                last = written.end()
                subscriber.await_epoch(last)
                for reader in readers:
                    reader.end()
    scans, gets, larges, _ = readers
    # A killed server loses the connection to the owner and the one to the proxy, one after the other.
    assert scans.lost == 0 and gets.lost <= 2 * KILLS and larges.lost <= 2 * KILLS
    assert subscriber.epochs.keys() == set(KEYS)
    for epochs in subscriber.epochs.values():
        assert epochs == list(range(epochs[0], last + 1)), "a change is missing, repeated or out of order"


def await_progress(readers: list[Reader]) -> None:
    """Wait until each has done something more."""
    done = [reader.done for reader in readers]

    def progressed() -> bool:
        for reader in readers:
            reader.check()
        return all(reader.done > before for reader, before in zip(readers, done, strict=True))

    until(progressed, "all readers go on", TIMEOUT_S)
