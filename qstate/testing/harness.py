"""The harness: runs one function on rows and times that a test chooses, and looks into its state.

Rules of this module: it is the face that tests use. `subtasks` runs the epochs.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from qstate.backends.contract import Timer
from qstate.backends.expiry import stored_form
from qstate.config import JobConfig
from qstate.descriptors import StateDescriptor
from qstate.errors import ConfigError, JobError
from qstate.keys import Key, Namespace, check_key, decode_key
from qstate.operators.expiry.ttl_tables import current_contents
from qstate.operators.functions import StreamFunction
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.side_outputs import MAIN
from qstate.operators.time.epoch_time import milliseconds_of
from qstate.operators.time.timers import EVENT_TIME_TIMERS, PROCESSING_TIME_TIMERS, TimeDomain
from qstate.runtime.control.scratch_directory import temporary_directory
from qstate.testing.inputs import Broadcast, HarnessInputs, Input
from qstate.testing.rows import Columns, schema_of
from qstate.testing.subtasks import HarnessClock, HarnessSubtasks

__all__ = ["FunctionHarness"]

JOB, UID = "harness", "function"
_NO_SIDES: Mapping[str, Columns] = MappingProxyType({})


class FunctionHarness:
    """Runs a function without Spark, in this process. Use it as a context manager.

    Each call of `process`, `advance_watermark` and `advance_processing_time` is one epoch: due timers fire, the rows
    are processed, the state is committed and stored as in a job. Errors of the function are raised as `JobError`, as
    they would stop the query; the epoch is rolled back then.

    `input` and `output` are the columns of the rows, as a mapping of names to `str`, `int`, `float`, `bool`, `bytes`,
    `date`, `datetime` or types of Arrow, or as a schema of Arrow. `key_by` names the key columns, `order_by` the
    columns that rows of an epoch are sorted by. `event_time` names the column with the event time, and `delay` is the
    delay of its watermark. `second` is the second stream of a function of two. `broadcast` are the broadcast rows of a
    function that has some. Without `key_by`, the stream has no key: its rows go to the subtasks in turn. `side_outputs`
    has the columns of the side outputs by their names. `settings` are those of a job, such as `backend` and
    `parallelism`.

    The function is pickled for each subtask, as in a job. `checkpoint` is where the state is kept: a harness over the
    directory of a closed one continues with its state, also with another backend or parallelism, or a changed function.

    Raises `ConfigError` and `JobError` for what a job would refuse.
    """

    def __init__(
        self,
        function: StreamFunction,
        *,
        input: Columns,
        output: Columns,
        key_by: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        event_time: str | None = None,
        delay: timedelta = timedelta(0),
        second: Input | None = None,
        broadcast: Broadcast | None = None,
        processing_time: int | datetime = 0,
        side_outputs: Mapping[str, Columns] = _NO_SIDES,
        checkpoint: str | Path | None = None,
        **settings: Any,
    ) -> None:
        self._temporary = temporary_directory("qstate-harness-")
        try:
            if broadcast is not None and second is not None:
                raise ConfigError("a function has broadcast rows or a second input, not both")
            if not isinstance(broadcast, Broadcast | None):
                raise ConfigError(f"broadcast takes Broadcast(columns=..., states=[...]), got {broadcast!r}")
            first = Input(columns=input, key_by=key_by, event_time=event_time, delay=delay)
            self._inputs = HarnessInputs([one for one in (broadcast, first, second) if one is not None], order_by)
            self._given = [broadcast is not None, True, second is not None]
            spec = OperatorSpec(
                uid=UID,
                job=JOB,
                function=function,
                output_schema=schema_of("output", output),
                side_outputs={name: schema_of(f"side output {name!r}", one) for name, one in side_outputs.items()},
                **self._inputs.spec_fields(),
            )
            self._outputs = spec.result_schema.names if side_outputs else []
            self._emitted: dict[str, list[tuple[Any, ...]]] = {}
            directory = str(self._temporary / "checkpoint" if checkpoint is None else checkpoint)
            if settings.get("restore_from") is not None:
                raise ConfigError("restore_from is for jobs: name the directory of a closed harness as checkpoint")
            of_harness = {"parallelism": 1, "snapshot_interval": 0, **settings, "checkpoint_dir": directory}
            config = JobConfig.from_spark({}, **of_harness)
            self._clock = HarnessClock(spec, _milliseconds(processing_time))
            self._subtasks = HarnessSubtasks(_copies(spec), config, self._temporary, self._clock.processing_time)
        except BaseException:
            shutil.rmtree(self._temporary, ignore_errors=True)
            raise
        self._closed = False
        for operator in self._subtasks.operators:
            self._clock.restored(operator.reached)

    # -- what a job does

    def process(self, *rows: Any, second: Sequence[Any] = (), broadcast: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run an epoch with these rows: tuples in the order of the columns, or dicts. Returns the rows emitted.

        `second` are the rows of the second stream. Without `order_by` they come after the others. `broadcast` are the
        broadcast rows: every subtask gets them, in their order and before the others. Rows of side outputs are not
        among the result: see `side_output`.
        """
        self._emitted = {}
        found = self._opened.run(self._rows(broadcast, rows, second), self._clock)
        if not self._outputs:
            return found
        for number, name in enumerate(self._outputs):
            self._emitted[name] = [tuple(row[number].values()) for row in found if row[number] is not None]
        return self._emitted[MAIN]

    def advance_watermark(self, time: int | datetime) -> list[tuple[Any, ...]]:
        """Run an epoch without rows whose watermark is this time, or a later one that earlier rows have reached."""
        self._clock.watermark = max(_milliseconds(time), self._clock.watermark or _milliseconds(time))
        return self.process()

    def advance_processing_time(self, time: int | datetime) -> list[tuple[Any, ...]]:
        """Run an epoch without rows whose processing time is this time."""
        self._clock.processing_time = max(_milliseconds(time), self._clock.processing_time)
        return self.process()

    def fail(self, *rows: Any, second: Sequence[Any] = (), broadcast: Sequence[Any] = ()) -> None:
        """Run an epoch with these rows that fails after the function has processed them: it is rolled back."""
        self._emitted = {}
        self._opened.fail(self._rows(broadcast, rows, second), self._clock)

    # -- what a test looks at

    @property
    def watermark(self) -> int | None:
        """The watermark of the last epoch, in milliseconds; None while there is none."""
        return self._clock.watermark

    @property
    def processing_time(self) -> int:
        """The processing time of the next epoch, in milliseconds."""
        return self._clock.processing_time

    def state(self, name: str, key: Key, namespace: Namespace = None) -> Any:
        """The stored value of a key: a list for a list state, a dict for a map state, None without a value.

        Of a state with a time-to-live it is what has not expired at the processing time.

        Raises `JobError` for a name that the function has not declared, `WrongKeyType` for what cannot be a key.
        """
        descriptor = self._descriptor(name)
        check_key(key, self._opened.operators[0].key_types_of(name))
        found = self._opened.backend_of(key).table(stored_form(descriptor), namespace).get(key)
        return found if descriptor.ttl is None else current_contents(descriptor, found, self.processing_time)

    def side_output(self, name: str) -> list[tuple[Any, ...]]:
        """The rows that the last epoch has sent to a side output; none if it has failed.

        Raises `JobError` for a name that is not in `side_outputs`.
        """
        if name == MAIN or name not in self._outputs:
            raise JobError(f"no side output is called {name!r}; there are {self._outputs[1:]}")
        return self._emitted.get(name, [])

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """The stored entries of a broadcast state.

        Raises `JobError` for a name that is not among the states of `broadcast`.
        """
        descriptor = self._descriptor(name)
        if name not in [one.name for one in self._opened.operators[0].spec.broadcast_states]:
            raise JobError(f"{name!r} is a keyed state: use state({name!r}, key)")
        entries = self._opened.entries(name)
        return {decode_key(one.key): descriptor.serializer.loads(one.data) for one in entries}

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> list[Timer]:
        """All timers of a time domain, the earliest first."""
        descriptor = EVENT_TIME_TIMERS if domain is TimeDomain.EVENT_TIME else PROCESSING_TIME_TIMERS
        found: list[Any] = [
            (decode_key(one.map_key), decode_key(one.namespace), decode_key(one.key))
            for one in self._opened.entries(descriptor.name)
        ]
        return [Timer(*one) for one in sorted(found, key=lambda one: one[0])]

    def close(self) -> None:
        """Close the function, as when a job is stopped. Idempotent."""
        self._closed = True
        self._subtasks.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> FunctionHarness:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def _opened(self) -> HarnessSubtasks:
        if self._closed:
            raise JobError("this harness is closed: open another one over its checkpoint directory")
        return self._subtasks

    def _rows(self, *rows: Sequence[Any]) -> Callable[[int], pa.RecordBatch]:
        """The rows of (broadcast, first, second) as the batch of an epoch, by subtask."""
        hints = (
            "broadcast input: name it with broadcast=Broadcast(...)",
            "input",
            "second input: name it with second=Input(...)",
        )
        for of_input, given, hint in zip(rows, self._given, hints, strict=True):
            if of_input and not given:
                raise ConfigError(f"the function has no {hint}")
        given_rows = list(compress(rows, self._given))
        self._inputs.batch(*given_rows)  # raises before an epoch begins
        return lambda subtask: self._inputs.batch(*given_rows, subtask=subtask)

    def _descriptor(self, name: str) -> StateDescriptor:
        descriptors = {one.name: one for one in self._opened.operators[0].descriptors}
        if name not in descriptors:
            raise JobError(f"the function has no state {name!r}; it has {', '.join(map(repr, sorted(descriptors)))}")
        return descriptors[name]


def _copies(spec: OperatorSpec) -> Callable[[], OperatorSpec]:
    """A maker of copies, from the pickle that a job would send to its task managers."""
    try:
        pickled: bytes = cloudpickle.dumps(spec)  # type: ignore[no-untyped-call]  # untyped in PySpark
    except Exception as exc:  # pickling runs code of all objects that the function refers to
        name = type(spec.function).__name__
        raise JobError(f"{name} cannot be pickled: {exc}; create connections, locks and the like in open()") from exc
    return lambda: pickle.loads(pickled)


def _milliseconds(time: int | datetime) -> int:
    if isinstance(time, datetime) and time.tzinfo is not None:
        return milliseconds_of(time)
    if type(time) is not int:
        raise ConfigError(f"a time is milliseconds, or a datetime with a time zone, got {time!r}")
    return time
