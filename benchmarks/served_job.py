"""A job without Spark: a real job manager and a real task manager process, filled through the real relay.

Rules of this module: it plays Spark's part (one partition per subtask, one epoch after the other) and nothing
else's. What it serves can be got as from any job.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from qstate.config import JobConfig
from qstate.descriptors import ValueStateDescriptor
from qstate.keys import key_group, subtask_of
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.sinks import QueryableValueSink
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.relay.data_channel import SessionRequest
from qstate.runtime.relay.relay import JobTicket, relay

__all__ = ["JOB", "STATE", "ServedJob"]

JOB, STATE = "served", "value"
ROWS_PER_BATCH = 10_000


class ServedJob:
    """Holds the last value of each key under the queryable name `STATE`. Use it as a context manager.

    `value_type` is the Arrow type of the values, `declared` the type of the state, `settings` are further ones of the
    job. One subtask by default: one server, as Redis is one server.
    """

    def __init__(
        self,
        value_type: pa.DataType,
        *,
        declared: type = object,
        backend: str = "heap",
        parallelism: int = 1,
        **settings: Any,
    ) -> None:
        config = JobConfig(backend=backend, proxy_ports="0", server_ports="0", parallelism=parallelism, **settings)
        self._manager = JobManager(JOB, config, parallelism=parallelism, host="127.0.0.1", local=True)
        self._schema = pa.schema([("key", pa.string()), ("value", value_type)])
        self._epoch = 0
        spec = OperatorSpec(
            uid=STATE,
            job=JOB,
            function=QueryableValueSink(ValueStateDescriptor(STATE, declared).queryable(STATE), ("value",)),
            key_columns=("key",),
            input_schema=self._schema,
            output_schema=pa.schema([("nothing", pa.int64())]),
        )
        self._manager.declare(STATE, Declaration("", pickle.dumps(spec)), {})

    @property
    def proxy(self) -> tuple[str, int]:
        """The address for clients."""
        return self._manager.wait_for_proxy(self._manager.config.start_timeout_s)

    @property
    def pids(self) -> list[int]:
        """The processes of its task managers."""
        return [address.pid for address in self._manager.task_managers()]

    def hold(self, values: Mapping[str, Any]) -> None:
        """Put these values, as one epoch."""
        manager, config = self._manager, self._manager.config
        groups = config.max_parallelism
        parts: list[list[str]] = [[] for _ in range(manager.parallelism)]
        for key in values:
            parts[subtask_of(key_group(key, groups), manager.parallelism, groups)].append(key)
        ticket = JobTicket(JOB, manager.address, manager.secret, config.start_timeout_s, config.replay_buffer_bytes)
        for subtask, keys in enumerate(parts):
            request = SessionRequest(STATE, subtask, self._epoch, self._epoch + 1, "query", "")
            for _ in relay(ticket, request, self._batches(keys, values)):
                raise RuntimeError("a sink gave a row")
        self._epoch += 1

    def finalize(self) -> None:
        """Report the last epoch as committed."""
        self._manager.finalize("query", self._epoch - 1)

    def _batches(self, keys: Sequence[str], values: Mapping[str, Any]) -> list[pa.RecordBatch]:
        columns = [keys, [values[key] for key in keys]]
        table = pa.table(columns, schema=self._schema)
        # In the place of Spark's hashes, which only serve to compare an epoch with itself when it comes again.
        hashes = pa.nulls(len(keys), pa.int64()).fill_null(0)
        batches: list[pa.RecordBatch] = table.append_column("hash", hashes).to_batches(max_chunksize=ROWS_PER_BATCH)
        return batches

    def __enter__(self) -> ServedJob:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._manager.stop()
