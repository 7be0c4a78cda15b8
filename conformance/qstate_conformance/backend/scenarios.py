"""What the processes of `child` do with a backend: `python -m qstate_conformance.backend.scenarios ORDER`.

Rules of this module: it runs in a process of its own and judges nothing; it says what happened, in JSON, one object
per line, and the law decides. `say` is for results, `pause` for a point at which the law may kill the process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from qstate.backends import Capability, Change, Isolation, Selection, StateBackend, StateReader, StateTable, Timer
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import ClosedError
from qstate.keys import Key, Namespace
from qstate_conformance.backend.change_file import ChangeFile
from qstate_conformance.backend.instances import declare
from qstate_conformance.backend.model import Model
from qstate_conformance.backend.states import KINDS, LIST, MAP, TIMERS, VALUE, numbered
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.subjects import ALL, BackendSubject, backend_subject

__all__ = ["SCENARIOS", "writes_of_epoch"]

_KEYS: list[Key] = ["a", b"b", 3, ("c", 4), "\u00e9"]
_NAMESPACES: list[Namespace] = [None, ("w", 7)]
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def say(**result: Any) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def pause(**where: Any) -> None:
    """Say where the scenario is, and wait for the line that lets it continue."""
    say(**where)
    if not sys.stdin.readline():
        sys.exit("the process that started this one has ended")


def writes_of_epoch(epoch: int) -> list[Write]:
    """The same writes for the same epoch, in every process: all kinds, deletes and removals among them."""
    random = Random(epoch)
    writes = []
    for _ in range(40):
        key: Key = random.choice(_KEYS)
        space, number = random.choice(_NAMESPACES), random.randrange(100)
        writes_of_all_kinds: list[tuple[str, str, tuple[Any, ...]]] = [
            (VALUE.name, "put", ([epoch, number],)), (VALUE.name, "delete", ()),
            (LIST.name, "list_add", ([epoch, number],)), (LIST.name, "put", ([number],)),
            (MAP.name, "map_put", (number % 5, [epoch])), (MAP.name, "map_remove", (number % 5,)),
            (MAP.name, "put", ({number % 5: epoch, "whole": number},)),
        ]  # fmt: skip
        name, operation, arguments = random.choice(writes_of_all_kinds)
        writes.append(Write(operation, name, space, key, arguments))
    return writes


def _open(subject: BackendSubject, directory: Path) -> StateBackend:
    backend = subject.open(directory)
    declare(backend)
    return backend


# -- the life of a job that gets killed -----------------------------------------------------------------------------


def work(subject: BackendSubject, directory: Path, log: str, stop: str, epochs: int) -> None:
    """Run epochs and keep their changes in `log`. Pauses in epoch `epochs`, at the point that `stop` says."""
    with _open(subject, directory) as backend, ChangeFile(Path(log)) as changes:
        for epoch in range(epochs + 1):
            last = epoch == epochs
            backend.begin(epoch)
            apply(writes_of_epoch(epoch), backend, Model())
            backend.publish()
            if last and stop == "writing":
                pause(at="writing", epoch=epoch)
            told: list[Change] = []
            for change in backend.commit(epoch):
                told.append(change)
                if last and stop == "committing" and len(told) == 3:
                    pause(at="committing", epoch=epoch)
            if last and stop == "committed":
                pause(at="committed", epoch=epoch)
            changes.seal(epoch, told)
            if last and stop == "sealed":
                pause(at="sealed", epoch=epoch)
            backend.finalize(epoch)
            say(at="final", epoch=epoch)


# -- the end of a life ----------------------------------------------------------------------------------------------


def outside(subject: BackendSubject, directory: Path) -> None:
    """Live a whole life; say which paths outside `directory` were opened for writing, made, moved or removed."""
    touched: list[str] = []
    inside = str(directory)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool((flags or 0) & _WRITING) or any(letter in str(mode or "") for letter in "wax+")
        else:
            path, writes = (arguments or ("",))[0], event in ("os.mkdir", "os.rename", "os.remove", "sqlite3.connect")
        if writes and isinstance(path, str | bytes | os.PathLike):
            text = os.fsdecode(path)
            absolute = text if text.startswith(":") else str(Path(text).absolute())
            if not absolute.startswith((inside, "/dev/", "/proc/", ":")):
                touched.append(f"{event} {absolute}")

    sys.addaudithook(watch)
    with _open(subject, directory) as backend:
        for epoch in range(3):
            backend.begin(epoch)
            apply(writes_of_epoch(epoch), backend, Model())
            backend.publish()
            list(backend.commit(epoch))
            backend.finalize(epoch)
    say(touched=sorted(set(touched)))


def after_close(subject: BackendSubject, directory: Path) -> None:
    """Use everything after `close`; say what each use did: an exception's name, or what it gave."""
    backend = _open(subject, directory)
    backend.begin(0)
    tables = {descriptor.name: backend.table(descriptor) for descriptor in (VALUE, LIST, MAP)}
    for name, table in tables.items():
        table.put("k", {"m": 1} if name == MAP.name else [1])
    queue, timer = backend.timers(TIMERS), Timer(1, None, "k")
    queue.add(timer)
    list(backend.commit(0))
    backend.finalize(0)
    backend.begin(1)
    readers = {"live": backend.reader(Isolation.LIVE)}
    if Isolation.COMMITTED.value in _isolations(subject):
        readers["committed"] = backend.reader(Isolation.COMMITTED)
    answers = {name: _answers(reader) for name, reader in readers.items()}
    backend.close()
    backend.close()
    whole: dict[str, Callable[[], Any]] = {
        "begin": lambda: backend.begin(2), "commit": lambda: list(backend.commit(2)),
        "finalize": lambda: backend.finalize(0), "rollback": backend.rollback,
        "table": lambda: backend.table(VALUE), "timers": lambda: backend.timers(TIMERS),
        "reader": lambda: backend.reader(Isolation.LIVE),
        "restore": lambda: backend.restore(3, []),
        "entries": lambda: list(backend.entries(ALL)),
        "walk": lambda: list(backend.walk({VALUE.name: bool}, ALL)),
    }  # fmt: skip
    of_tables: dict[str, Callable[[], Any]] = {"publish": backend.publish}
    for name, table in tables.items():
        of_tables[f"{name} get"] = partial(table.get, "k")
        of_tables[f"{name} get other"] = partial(table.get, "other")
    for name, table in tables.items():
        of_tables[f"{name} put"] = partial(table.put, "j", {"m": 1} if name == MAP.name else [1])
        of_tables[f"{name} delete"] = partial(table.delete, "j")
    of_tables["list_add"] = lambda: tables[LIST.name].list_add("j", [1])
    of_tables["map_put"] = lambda: tables[MAP.name].map_put("j", "m", 1)
    queue_uses: dict[str, Callable[[], Any]] = {
        "queue add": lambda: queue.add(timer._replace(time=2)), "queue remove": lambda: queue.remove(timer),
        "queue take": lambda: queue.take(1, 1), "queue first": queue.first,
    }  # fmt: skip
    of_readers = {name: partial(_answers, reader) for name, reader in readers.items()}
    say(
        backend={name: _outcome(name, use) for name, use in whole.items()},
        tables={name: _outcome(name, use) for name, use in of_tables.items()},
        timers={name: _outcome(name, use) for name, use in queue_uses.items()},
        readers={name: _outcome(name, use) for name, use in of_readers.items()},
        answers=answers,
    )


def lives(subject: BackendSubject, directory: Path, count: int) -> None:
    """Open, use and close again and again; say how many files, threads and processes each life left behind."""
    left = []
    for number in range(count):
        with _open(subject, directory / str(number)) as backend:
            backend.begin(0)
            apply(writes_of_epoch(0), backend, Model())
            list(backend.commit(0))
            backend.reader(Isolation.LIVE).get(VALUE, None, ["a"])
            list(backend.entries(ALL))
        del backend
        gc.collect()
        left.append([_open_files(), len(threading.enumerate()), _child_processes()])
    say(left=left)


def close_while_reading(subject: BackendSubject, directory: Path) -> None:
    """Close while other threads read; say how each reader ended: ClosedError, another exception, or answers."""
    backend = _open(subject, directory)
    backend.begin(0)
    for descriptor in KINDS:
        backend.table(descriptor).put("k", numbered(descriptor, 1))
    list(backend.commit(0))
    backend.finalize(0)
    asked = [Isolation(value) for value in _isolations(subject)] * 2
    started, closed, ends = threading.Barrier(len(asked) + 1), threading.Event(), ["still reading"] * len(asked)

    def read(number: int, isolation: Isolation) -> None:
        reader, after = backend.reader(isolation), 0
        before = [_plain(reader.get(kind, None, ["k"]).values) for kind in KINDS]
        started.wait()
        while after < 100:
            after += closed.is_set()
            try:
                found = [_plain(reader.get(kind, None, ["k"]).values) for kind in KINDS]
            except ClosedError:
                ends[number] = "ok"
                return
            except BaseException as exc:
                ends[number] = f"{type(exc).__name__}: {exc}"
                return
            if found != before:
                ends[number] = f"another answer: {found}, before: {before}"
                return
        ends[number] = "ok"

    threads = [threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate(asked)]
    for thread in threads:
        thread.start()
    started.wait()
    backend.close()
    closed.set()
    for thread in threads:
        thread.join(20.0)
    say(ends=ends)


# -- memory ---------------------------------------------------------------------------------------------------------


def grow(subject: BackendSubject, directory: Path, first_mib: int, last_mib: int) -> None:
    """Fill the state with data that cannot be compressed; say the memory that was needed at most, at both sizes."""
    random, size = Random(1), 32 * 1024
    with _open(subject, directory) as backend:
        table, written, epoch = backend.table(VALUE), 0, 0
        for target in (first_mib, last_mib):
            while written < target * 1024 * 1024:
                backend.begin(epoch)
                for _ in range(64):
                    table.put(written, random.randbytes(size))
                    written += size
                for _ in backend.commit(epoch):
                    pass
                backend.finalize(epoch)
                epoch += 1
            say(written_mib=written / 1024 / 1024, peak_mib=_peak_mib())
        probe = [number * size for number in range(0, written // size, 97)]
        visited = _visited(backend) if Capability.SCANS in backend.capabilities else written // size
        say(
            missing=sum(table.get(key) is None for key in probe),
            unvisited=written // size - visited,
            peak_mib=_peak_mib(),
        )


def _visited(backend: StateBackend) -> int:
    """How many keys a scan visits."""
    scan = backend.reader(Isolation.LIVE).scan(VALUE)
    groups = range(ALL.start, ALL.stop)
    try:
        return sum(entry.value is not None for group in groups for entry in scan.entries(group, None, Selection()))
    finally:
        scan.close()


def read_large(subject: BackendSubject, directory: Path, first_mib: int, last_mib: int) -> None:
    """Fill a map and a list and read both one by one, at two sizes; say what was read, and the peak of memory."""
    random, size = Random(1), 32 * 1024
    first, last = (mib * 1024 * 1024 // size for mib in (first_mib, last_mib))
    with _open(subject, directory) as backend:
        maps, lists = backend.table(MAP), backend.table(LIST)
        for start in range(0, last, 64):
            backend.begin(start)
            if start == first:
                _read_both(maps, lists, size)
            for number in range(start, start + 64):
                maps.map_put("k", number, random.randbytes(size))
                lists.list_add("k", [random.randbytes(size)])
            for _ in backend.commit(start):
                pass
            backend.finalize(start)
        backend.begin(last)
        _read_both(maps, lists, size)


def _read_both(maps: StateTable, lists: StateTable, size: int) -> None:
    entries = sum(len(value) == size for _, value in maps.map_items("k"))
    elements = sum(len(element) == size for element in lists.list_items("k"))
    say(mib=entries * size / 1024 / 1024, entries=entries, elements=elements, peak_mib=_peak_mib())


def age(subject: BackendSubject, directory: Path, epochs: int, samples: int) -> None:
    """Write a small state over for many epochs, in windows that come and go; say what is occupied, again and again."""
    random, written, size = Random(1), 0, 1024
    with _open(subject, directory) as backend:
        for epoch in range(epochs):
            written += _write_over(backend, epoch, random, size)
            reader = backend.reader(Isolation.LIVE)
            for kind in (VALUE, LIST, MAP):
                reader.get(kind, None, list(range(10)))
            next(backend.entries(ALL))  # a reader that gives up after the first
            if (epoch + 1) % (epochs // samples) == 0:
                gc.collect()
                say(written_mib=written / 1024 / 1024, memory_mib=_resident_mib(), disk_mib=_disk_mib(directory),
                    files=_open_files(), threads=len(threading.enumerate()), processes=_child_processes())  # fmt: skip
    say(end=epochs)


def _write_over(backend: StateBackend, epoch: int, random: Random, size: int) -> int:
    """One epoch, or two attempts of it; how many bytes were written."""
    for attempt in range(2 if epoch % 10 == 0 else 1):
        backend.begin(epoch)
        data = random.randbytes(size)
        for key in range(40):
            backend.table(ValueStateDescriptor(VALUE.name)).put(key, data)
            backend.table(VALUE, ("window", epoch)).put(key, data)
            backend.table(VALUE, ("window", epoch - 1)).delete(key)
        for key in range(10):
            backend.table(LIST).put(key, [data] * 2)
            backend.table(LIST).list_add(key, [epoch])
            backend.table(MAP).map_put(key, epoch, data)
            backend.table(MAP).map_remove(key, epoch - 2)
        if attempt == 0 and epoch % 10 == 0:
            backend.publish()
            backend.rollback()
    for _ in backend.commit(epoch):
        pass
    backend.finalize(epoch)
    return size * 110


def _resident_mib() -> float:
    """The memory of the process now, or its maximum where the system does not report the current figure."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return _peak_mib()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _disk_mib(directory: Path) -> float:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # files come and go
            total += path.stat().st_size if path.is_file() else 0
    return total / 1024 / 1024


def _peak_mib() -> float:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        # Elsewhere: bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
    # Not `ru_maxrss`: Linux lets a new program begin with the peak of the one that started it.
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


# -- small things ---------------------------------------------------------------------------------------------------


def _isolations(subject: BackendSubject) -> list[str]:
    committed = any(capability.name == "COMMITTED_READS" for capability in subject.capabilities)
    return ["live", "committed"] if committed else ["live"]


def _answers(reader: StateReader) -> list[Any]:
    return _plain(reader.get(VALUE, None, ["k"]).values)


def _plain(values: Any) -> list[Any]:
    """Answers as JSON can say them."""
    return [value.hex() if isinstance(value, bytes) else str(value) for value in values]


def _outcome(name: str, use: Callable[[], Any]) -> str:
    sys.stderr.write(f"{name} ...\n")  # shows where the process hangs, if it does
    sys.stderr.flush()
    try:
        return f"gave {use()!r}"
    except ClosedError:
        return "ClosedError"
    except BaseException as exc:
        return f"raised {type(exc).__name__}: {exc}"


def _open_files() -> int:
    listing = Path("/proc/self/fd")
    return sum(1 for _ in listing.iterdir()) if listing.is_dir() else 0


def _child_processes() -> int:
    return sum(len(listing.read_text().split()) for listing in Path("/proc/self/task").glob("*/children"))


SCENARIOS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (work, outside, after_close, lives, close_while_reading, grow, read_large, age)
}


def main(text: str) -> None:
    order = json.loads(text)
    subject = backend_subject(order["subject"], order["options"])
    directory = Path(order["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    SCENARIOS[order["scenario"]](subject, directory, **order["arguments"])


if __name__ == "__main__":
    main(sys.argv[1])
