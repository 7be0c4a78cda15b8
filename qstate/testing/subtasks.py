"""The subtasks of a harness: the parts of task managers without processes, sockets and Spark.

Rules of this module: it opens real subtasks over a real checkpoint directory, and gives each its share of an epoch. The
parts do the work: the backend, the operator, the epoch log, and the steps that make each row count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from qstate.backends.contract import Change, StateBackend
from qstate.config import JobConfig
from qstate.errors import JobError
from qstate.keys import key_group, subtask_of
from qstate.operators.columns.inputs import BROADCAST, INPUT_COLUMN
from qstate.operators.operator import FunctionOperator
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.time.epoch_time import EpochTime, Reached, next_watermark
from qstate.operators.time.timers import FirstTimers
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.relay.data_channel import Frame, FrameKind
from qstate.runtime.relay.input_digest import InputDigest
from qstate.runtime.tasks.subtask_epochs import EpochAttempt, SubtaskEpochs
from qstate.runtime.tasks.subtask_place import Restart, SubtaskPlace
from qstate.runtime.tasks.subtask_restore import SubtaskParts, restore_subtask
from qstate.testing.rows import rows_of

__all__ = ["HarnessClock", "HarnessSubtasks"]

QUERY = "harness"


class HarnessClock:
    """The time of each epoch, as the test sets it. It never goes back."""

    def __init__(self, spec: OperatorSpec, processing_time: int) -> None:
        self._event_times = spec.event_times
        self._reached: Reached | None = None
        #: The least watermark and processing time of the next epoch.
        self.watermark: int | None = None
        self.processing_time = processing_time
        self._time = EpochTime(None, processing_time)

    def next_epoch(self) -> None:
        """Decide the time of the next epoch, for all subtasks: from the rows before and from what the test has set."""
        if self._event_times:
            found = next_watermark(self._event_times, self._reached, lambda _: ())
            self.watermark = max((one for one in (found, self.watermark) if one is not None), default=None)
        self._time = EpochTime(self.watermark, self.processing_time)

    def begin(self, reached: Reached | None) -> EpochTime:
        """The time of the epoch."""
        return self._time

    def sealed(self, reached: Reached, first_timers: FirstTimers) -> None:
        """A subtask has sealed the epoch."""
        self.restored(reached)

    def restored(self, reached: Reached | None) -> None:
        """A subtask has reached this."""
        self._reached = Reached.of_all(one for one in (self._reached, reached) if one is not None)
        if reached is not None:
            self.processing_time = max(self.processing_time, reached.processing_time)


class _Channel:
    """The channel of a session, in memory: the input of a subtask in, its results out."""

    def __init__(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
        self._frames = self._input(schema, batches)
        self.results: list[tuple[Any, ...]] = []
        self._schema: pa.Schema | None = None

    @staticmethod
    def _input(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> Iterator[Frame]:
        digest = InputDigest()
        yield Frame(FrameKind.SCHEMA, schema.serialize())
        for batch in batches:
            hashes = [xxh64_intdigest(repr(row).encode()) >> 1 for row in batch.to_pylist()]
            digest.take(batch.append_column("hash", pa.array(hashes, pa.int64())))
            yield Frame(FrameKind.BATCH, batch.serialize())
        yield Frame(FrameKind.END, digest.to_bytes())

    def quiet(self) -> bool:
        return True

    def receive(self) -> Frame:
        return next(self._frames)

    def send(self, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        if kind is FrameKind.SCHEMA:
            self._schema = pa.ipc.read_schema(pa.py_buffer(payload))
        elif kind is FrameKind.OUTPUT:
            self.results += rows_of(pa.ipc.read_record_batch(pa.py_buffer(payload), self._schema))


#: The rows of an epoch; the broadcast rows among them are for the subtask with this index.
RowsOfSubtask = Callable[[int], pa.RecordBatch]


class HarnessSubtasks:
    """The subtasks of one operator, open until `close`."""

    def __init__(
        self, make_spec: Callable[[], OperatorSpec], config: JobConfig, directory: Path, processing_time: int
    ) -> None:
        """`make_spec` gives each subtask a spec of its own, with its own copy of the function.

        They are opened at `processing_time`, or at the time that the stored epochs have reached.
        """
        self._opened_at_ms = processing_time
        spec = make_spec()
        self._uid, self._schema = spec.uid, spec.input_schema
        self._config = config
        self._directory = JobDirectory(spec.job, config, config.parallelism)
        self._make_spec, self._scratch = make_spec, directory
        self._parts: dict[int, SubtaskParts] = {}
        self._epochs: dict[int, SubtaskEpochs] = {}
        self._attempt = 0
        try:
            self._directory.bind(self._uid, QUERY, [self._uid])
            self.epoch = self._directory.final(self._uid) + 1
            for index in range(config.parallelism):
                self._open(index)
        except BaseException:
            self.close()
            raise

    def _open(self, index: int) -> None:
        directory = self._directory
        place = SubtaskPlace(
            directory.manifest.job,
            index,
            self._config.parallelism,
            self._config,
            directory.files,
            directory.owner_token,
            directory.manifest.layout,
            self._scratch,
        )
        parts = restore_subtask(
            self._make_spec, place, Restart(directory.final(self._uid), self.epoch, self._opened_at_ms)
        )
        self._parts[index], self._epochs[index] = parts, SubtaskEpochs(parts)

    @property
    def operators(self) -> list[FunctionOperator]:
        return [parts.operator for parts in self._parts.values()]

    def backend_of(self, key: Any) -> StateBackend:
        """The backend of the subtask that owns a key."""
        return self._parts[self._owner(key)].backend

    def _owner(self, key: Any) -> int:
        groups = self._config.max_parallelism
        return subtask_of(key_group(key, groups), self._config.parallelism, groups)

    def entries(self, name: str) -> Iterator[Change]:
        """The committed entries of a state, of all subtasks."""
        for parts in self._parts.values():
            yield from (one for one in parts.backend.entries(parts.place.key_groups) if one.state == name)

    def run(self, rows: RowsOfSubtask, clock: HarnessClock) -> list[tuple[Any, ...]]:
        """Run the next epoch: each subtask gets the rows of its keys, and broadcast rows. Returns what they emit."""
        found: list[tuple[Any, ...]] = []
        clock.next_epoch()
        for index in range(len(self._parts)):
            found += self._run(index, rows, clock, lambda: None)
        self._directory.finalize(QUERY, self.epoch)
        for epochs in self._epochs.values():
            epochs.finalize(self.epoch)
        self.epoch += 1
        return found

    def fail(self, rows: RowsOfSubtask, clock: HarnessClock) -> None:
        """Begin the next epoch and let it fail in each subtask when its rows are processed."""
        clock.next_epoch()
        for index in range(len(self._parts)):
            with suppress(_Refused):
                self._run(index, rows, clock, _refuse)

    def _run(
        self, index: int, rows: RowsOfSubtask, clock: HarnessClock, check: Callable[[], None]
    ) -> list[tuple[Any, ...]]:
        self._attempt += 1
        channel = _Channel(self._schema, self._share(rows(index), index))
        try:
            self._epochs[index].run(EpochAttempt(self.epoch, self._attempt, channel, False, clock, check))
        finally:
            if self._epochs[index].broken:  # the backend holds an epoch that is not durable
                self._parts[index].resources.close()
                self._open(index)
        return channel.results

    def _share(self, batch: pa.RecordBatch, index: int) -> list[pa.RecordBatch]:
        """The rows of a batch that a subtask gets. Its broadcast rows are for this subtask already."""
        operator = self._parts[index].operator
        spec, found = operator.spec, []
        if spec.has_broadcast:
            is_broadcast = pc.equal(batch.column(INPUT_COLUMN), BROADCAST)
            found.append(batch.filter(is_broadcast))
            batch = batch.filter(pc.invert(is_broadcast))
        if spec.key_columns:
            owners = list(map(self._owner, operator.keys_of(batch)))
        else:
            owners = [row % self._config.parallelism for row in range(batch.num_rows)]
        found.append(batch.filter(pa.array([owner == index for owner in owners], pa.bool_())))
        return [one for one in found if one.num_rows]

    def close(self) -> None:
        """Close the function and everything else. The checkpoint directory stays. Idempotent."""
        with ExitStack() as resources:
            resources.callback(self._directory.close)
            for parts in self._parts.values():
                resources.callback(parts.resources.close)


class _Refused(JobError):
    """The failure that a test asks for."""


def _refuse() -> None:
    raise _Refused("the test lets the epoch fail")
