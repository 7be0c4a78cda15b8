"""The traceback of the user's code reaches the query in the error, and is whole in the task manager's log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError, QStateError, SerializationError
from qstate.operators.functions import FlatMapWithState, KeyedProcessFunction, StreamFunction
from qstate.operators.sinks import QueryableReducingSink
from qstate.serializers import MessagePackSerializer
from tests.runtime.job.functions import Close, Open, Totals, exit_quietly
from tests.runtime.job.running_job import RunningJob, rows_batch

JobOf = Callable[..., RunningJob]


def broken(*_: Any) -> Any:
    raise LookupError("no such rule")  # the line to be shown


class BrokenSerializer(MessagePackSerializer):
    def dumps(self, value: Any) -> bytes:
        broken()
        return super().dumps(value)


class BrokenSum(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        broken()
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, one: int, other: int) -> int:
        return one + other


class Uses(KeyedProcessFunction):
    """Adds each amount to the state that a descriptor describes."""

    def __init__(self, getter: str, descriptor: Any) -> None:
        self._getter = getter
        self._descriptor = descriptor

    def open(self, context: Any) -> None:
        self.state = getattr(context, self._getter)(self._descriptor)

    def process_element(self, row: Any, context: Any) -> Any:
        self.state.add(row.amount)
        self.state.add(row.amount)


def sink() -> StreamFunction:
    descriptor = ReducingStateDescriptor("r", int, reduce_function=broken).queryable("r")
    return QueryableReducingSink(descriptor, ["amount"])


def lists(**settings: Any) -> ListStateDescriptor:
    return ListStateDescriptor("l", int, **settings)


#: By where the user's code fails: the function, the words before the traceback, and the user's frames in it.
FAILURES: dict[str, tuple[Callable[[], StreamFunction], str, list[str]]] = {
    "process_element": (
        lambda: Totals(broken),
        "operator 'it', function Totals, key 'mischief': LookupError: no such rule",
        ["process_element", "broken"],
    ),
    "open": (
        lambda: Open(broken),
        "operator 'it', function Open, open(): LookupError: no such rule",
        ["open", "broken"],
    ),
    "reduce": (
        lambda: Uses("get_reducing_state", ReducingStateDescriptor("r", int, reduce_function=broken)),
        "operator 'it', function Uses, key 'mischief': LookupError: no such rule",
        ["process_element", "broken"],
    ),
    "aggregate": (
        lambda: Uses("get_aggregating_state", AggregatingStateDescriptor("a", int, aggregate_function=BrokenSum())),
        "operator 'it', function Uses, key 'mischief': LookupError: no such rule",
        ["process_element", "add", "broken"],
    ),
    "flat map": (
        lambda: FlatMapWithState(broken, ValueStateDescriptor("v", int)),
        "operator 'it', function FlatMapWithState(broken), key 'mischief': LookupError: no such rule",
        ["broken"],
    ),
    "sink": (
        sink,
        "operator 'it', function QueryableReducingSink(r), a batch of 2 rows: JobError: state 'r', key "
        "'mischief': the reduce function failed: LookupError: no such rule",
        ["broken"],
    ),
    "serializer": (
        lambda: Uses("get_list_state", lists(serializer=BrokenSerializer())),
        "operator 'it' subtask 0: state 'l', key 'mischief': no such rule",
        ["dumps", "broken"],
    ),
    "operator list": (
        lambda: Uses("get_operator_list_state", lists(serializer=BrokenSerializer())),
        "operator 'it' subtask 0: an element of operator state 'l' cannot be stored: LookupError: no such rule",
        ["dumps", "broken"],
    ),
    "exit": (lambda: Totals(exit_quietly), "operator 'it' failed: SystemExit: 3", ["process_element", "exit_quietly"]),
}


@pytest.mark.parametrize(
    ("where", "backend"),
    [*((where, "heap") for where in FAILURES), ("process_element", "rocksdb"), ("serializer", "rocksdb")],
)
def test_the_error_begins_with_the_users_own_traceback(where: str, backend: str, job_of: JobOf) -> None:
    make, words, frames = FAILURES[where]
    job = job_of(make(), backend=backend)
    with pytest.raises(QStateError) as caught:
        job.epoch(0, rows_batch(("mischief", 1), ("mischief", 2)))
    assert type(caught.value) is (SerializationError if where == "serializer" else JobError)
    first, second, rest = str(caught.value).split("\n", 2)
    assert (first, second) == (words, "Traceback (most recent call last):")
    assert re.findall(r'File ".*", line \d+, in (\w+)', rest) == frames
    assert "sys.exit(3)" in rest or "raise LookupError" in rest
    assert "/qstate/" not in rest.replace("/tests/", "")
    logged = job.log_text()
    assert rest.splitlines()[-1] in logged and "in _run_session" in logged, "the log has every frame"
    assert words in logged or "operator it subtask 0 failed" in logged


def test_a_close_that_fails_is_in_the_log_with_its_frames(job_of: JobOf) -> None:
    job = job_of(Close(broken))
    job.epoch(0, rows_batch(("a", 1)))
    log = job.logs()[0]
    job.manager.stop()
    logged = log.read_text()
    assert r"function Close, close(): LookupError: no such rule" in logged
    assert 'raise LookupError("no such rule")  # the line to be shown' in logged


def test_a_module_that_fails_on_import_is_shown(job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fragile_module.py").write_text(
        "import sys\nfrom tests.runtime.job.functions import Totals\n"
        "if 'pytest' not in sys.modules:\n    raise RuntimeError('no licence here')\n"
        "class Fragile(Totals):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = __import__("fragile_module")
    job = job_of(module.Fragile())
    with pytest.raises(JobError, match="operator 'it' cannot be unpickled") as caught:
        job.epoch(0, rows_batch(("a", 1)))
    assert 'fragile_module.py", line 4, in <module>\n    raise RuntimeError' in str(caught.value)
