"""A get costs a task manager about its frame limit and one value, however large and however many the values are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from qstate.descriptors import ListStateDescriptor, ValueStateDescriptor
from qstate.errors import FailureCode
from qstate.operators.functions import KeyedProcessFunction
from qstate.protocol.messages import Failure, Location, Values
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.running_job import JOB, RunningJob, rows_batch
from tests.runtime.serving.raw_client import RawClient

MIB = 1 << 20
VALUE_BYTES = 10 * MIB
KEYS = tuple(f"key {number}" for number in range(12))
#: Beyond what it had: a frame of 16 MiB in all its copies, a value, and what an allocator keeps. Not twelve values.
MOST_BYTES = 90 * MIB


class Blobs(KeyedProcessFunction):
    """Holds for each key as many bytes as its row says, as a value and as a list of 16 elements."""

    def open(self, context: Any) -> None:
        self.blob = context.get_state(ValueStateDescriptor("blob", bytes).queryable("blob"))
        self.parts = context.get_list_state(ListStateDescriptor("parts", bytes).queryable("parts"))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.blob.update(row.key.encode().ljust(row.amount, b"."))
        self.parts.update([bytes([number]) * (row.amount // 16) for number in range(16)])
        yield row.key, row.amount


def peak_bytes(pid: int) -> int:
    """The most memory that the process had resident since `forget_peak`."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_get_of_more_than_fits_a_frame_is_refused_before_it_is_made(
    job_of: Callable[..., RunningJob], backend: str
) -> None:
    job = job_of(Blobs(), backend=backend)
    for epoch, key in enumerate(KEYS):
        job.epoch(epoch, rows_batch((key, VALUE_BYTES)))
    job.epoch(len(KEYS))
    pid = job.task_manager().pid
    for address, target_of in addresses_of(job):
        with RawClient(address) as client:
            for state in ("blob", "parts"):
                target = target_of(state)
                assert isinstance(client.get(target, KEYS[0]), Values)
                for isolation in ("live", "committed"):
                    for keys in (KEYS[:1] * 100, KEYS, KEYS * 8):
                        before = psutil.Process(pid).memory_info().rss
                        forget_peak(pid)
                        answer = client.get(target, *keys, options={"isolation": isolation}, deadline_ms=30_000)
                        assert isinstance(answer, Failure) and answer.code == FailureCode.TOO_LARGE
                        cost = (peak_bytes(pid) - before) // MIB
                        assert cost * MIB < MOST_BYTES, f"{len(keys)} keys of {state}, {isolation}: {cost} MiB"
    assert psutil.Process(pid).is_running() and job.task_manager().pid == pid


def addresses_of(job: RunningJob) -> list[tuple[tuple[str, int], Callable[[str], Any]]]:
    """The proxy and the state server, and how each is asked for a state."""
    proxy = job.manager.wait_for_proxy(20.0)
    ids: dict[str, bytes] = {}
    with RawClient(proxy) as client:
        for state in ("blob", "parts"):
            location = client.locate(JOB, state)
            assert isinstance(location, Location)
            (_, _, host, port, ids[state]) = location.owners[0]
    return [(proxy, lambda state: (JOB, state)), ((host, port), ids.__getitem__)]
