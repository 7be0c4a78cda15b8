"""One subtask without its task manager: the operator, its backend and its epoch log, opened as in a task manager.

Rules of this module: the parts are the real ones, and an epoch is run by the code of the task managers. Only the socket
is missing: rows come from an iterator, results are counted. It takes times and the peaks of memory of the parts of an
epoch. Use it in a process of its own (`own_process`), or the memory is that of others, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.process_memory import MIB, forget_peak, peak_mib
from qstate.config import JobConfig
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.time.epoch_time import EpochTime, EventTime, Reached
from qstate.operators.time.timers import FirstTimers
from qstate.runtime.job.job_directory import JobDirectory
from qstate.runtime.relay.data_channel import Frame, FrameKind
from qstate.runtime.relay.input_digest import InputDigest
from qstate.runtime.tasks.subtask_epochs import EpochAttempt, SubtaskEpochs
from qstate.runtime.tasks.subtask_place import Restart, SubtaskPlace
from qstate.runtime.tasks.subtask_restore import restore_subtask

__all__ = ["EpochCost", "HeldOperator", "PartCost"]

JOB, UID, QUERY = "benchmark", "held", "query"
NOTHING = pa.schema([("nothing", pa.int64())])


@dataclass(frozen=True, slots=True)
class PartCost:
    """The time of a part of an epoch, and the most memory that the process had meanwhile.

    `cpu_s` is the processor time of the operator's thread, which other work on the machine changes less.
    """

    seconds: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The parts of an epoch: timers fire, rows are processed, and the epoch is committed and sealed on disk."""

    fire: PartCost
    rows: PartCost
    commit: PartCost

    @property
    def seconds(self) -> float:
        return self.fire.seconds + self.rows.seconds + self.commit.seconds

    @property
    def cpu_s(self) -> float:
        return self.fire.cpu_s + self.rows.cpu_s + self.commit.cpu_s

    @property
    def peak_mib(self) -> float:
        return max(self.fire.peak_mib, self.rows.peak_mib, self.commit.peak_mib)


class HeldOperator:
    """An open subtask, the only one of its operator. Close it.

    `schema` is that of the rows; the first column is the key. `event_time` is the column with the event time, if any.
    """

    def __init__(
        self, function: KeyedProcessFunction, schema: pa.Schema, backend: str, directory: Path, event_time: str = ""
    ) -> None:
        spec = OperatorSpec(
            uid=UID,
            job=JOB,
            function=function,
            key_columns=(schema.names[0],),
            input_schema=schema,
            output_schema=NOTHING,
            event_times=(EventTime(event_time, 0),) if event_time else (),
        )
        self._scratch, self._checkpoint = directory / "scratch", directory / "checkpoint"
        self._scratch.mkdir(parents=True)
        config = JobConfig(backend=backend, snapshot_interval=0, checkpoint_dir=str(self._checkpoint))
        self._directory = JobDirectory(JOB, config, 1)
        self._directory.bind(UID, QUERY, [UID])
        files, layout, owner = self._directory.files, self._directory.manifest.layout, self._directory.owner_token
        place = SubtaskPlace(JOB, 0, 1, config, files, owner, layout, self._scratch)
        self._parts = restore_subtask(lambda: spec, place, Restart(-1, 0))
        self._epochs = SubtaskEpochs(self._parts)
        self._schema = schema
        self._epoch = 0

    def run(
        self, batches: Iterable[pa.RecordBatch] = (), *, watermark: int | None = None, processing_time: int = 0
    ) -> EpochCost:
        """Run the next epoch, which is final then."""
        session = _Session(self._schema, batches, EpochTime(watermark, processing_time))
        self._epochs.run(EpochAttempt(self._epoch, 0, session, False, session, session.end_of_rows))
        session.end_of_part()
        self._directory.finalize(QUERY, self._epoch)
        self._epochs.finalize(self._epoch)
        self._epoch += 1
        return EpochCost(*session.parts)

    def entries(self, state: str) -> int:
        """How many entries a state has."""
        backend, groups = self._parts.backend, self._parts.place.key_groups
        return sum(change.state == state for change in backend.entries(groups))

    def backend_mib(self) -> float:
        """The files of the backend."""
        return _size_mib(self._scratch)

    def log_mib(self) -> float:
        """The files of the epoch log."""
        return _size_mib(self._checkpoint)

    def close(self) -> None:
        self._parts.resources.close()
        self._directory.close()


class _Session:
    """Channel and clock of an epoch: it gives rows and the time, and notes when a part of the epoch ends."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], epoch_time: EpochTime) -> None:
        self._frames = self._input(schema, batches)
        self._time = epoch_time
        self.parts: list[PartCost] = []
        self._start_part()

    def end_of_part(self) -> None:
        seconds, cpu_s = time.perf_counter() - self._began, time.thread_time() - self._cpu_began
        self.parts.append(PartCost(seconds, cpu_s, peak_mib()))
        self._start_part()

    def _start_part(self) -> None:
        forget_peak()
        self._began, self._cpu_began = time.perf_counter(), time.thread_time()

    def _input(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[Frame]:
        self.end_of_part()  # the operator has fired its timers before it asks for the first frame
        yield Frame(FrameKind.SCHEMA, schema.serialize())
        for batch in batches:
            yield Frame(FrameKind.BATCH, batch.serialize())
        yield Frame(FrameKind.END, InputDigest().to_bytes())

    def end_of_rows(self) -> None:
        """As the check whether an attempt is current, this is called before the commit."""
        self.end_of_part()

    # For the subtask, as its channel.

    def quiet(self) -> bool:
        return False

    def receive(self) -> Frame:
        return next(self._frames)

    def send(self, kind: FrameKind, payload: Any = b"") -> None:
        """Results go nowhere."""

    # For the subtask, as its clock.

    def begin(self, reached: Reached | None) -> EpochTime:
        return self._time

    def sealed(self, reached: Reached, first_timers: FirstTimers) -> None:
        """The next epoch has a time of its own."""


def _size_mib(directory: Path) -> float:
    found = (Path(folder) / name for folder, _, names in os.walk(directory) for name in names)
    return sum(path.stat().st_size for path in found) / MIB
