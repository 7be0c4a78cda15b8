"""Answers of a server, byte for byte, and epochs for the jobs of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from qstate.errors import FailureCode
from qstate.keys import key_group, subtask_of
from qstate.protocol.messages import Values
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.standby import Standby
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch, until
from tests.runtime.serving.raw_client import RawClient

KEYS = [f"key {number}" for number in range(24)]
COMMITTED = {"isolation": "committed"}
Answer = tuple[int, bytes | int | None]


def committed_answers(address: tuple[str, int], state: str, namespace: Any = None) -> Mapping[str, Answer]:
    """The epoch and the bytes, None or failure code that a proxy answers for each key."""
    found: dict[str, Answer] = {}
    with RawClient(address) as client:
        for key in KEYS:
            answer = client.get((JOB, state), key, namespace=namespace, options=COMMITTED)
            if isinstance(answer, Values):
                found[key] = answer.epochs[0], answer.results[0]
            else:
                found[key] = -1, FailureCode(answer.code)
    return found


def in_any_order(answers: Mapping[str, Answer]) -> Mapping[str, Any]:
    """The same, with a map's entries sorted, because an answer may have them in any order."""
    return {key: (epoch, _sorted(data)) for key, (epoch, data) in answers.items()}


def _sorted(data: Any) -> Any:
    if type(data) is not bytes or not (0x80 <= data[0] < 0x90 or data[0] in (0xDE, 0xDF)):
        return data
    unpacked = msgpack.unpackb(data, object_pairs_hook=list, raw=True, strict_map_key=False)
    return sorted((msgpack.packb(key), msgpack.packb(value)) for key, value in unpacked)


def feed(job: RunningJob, epoch: int, amount: int = 1, *, commit: bool = True, **task: Any) -> None:
    """One epoch with a row for every key, each at its subtask; then, as Spark does, say that it is committed."""
    parallelism = job.config.parallelism
    for subtask in range(parallelism):
        keys = [key for key in KEYS if subtask_of(key_group(key, 128), parallelism, 128) == subtask]
        job.epoch(epoch, rows_batch(*((key, amount) for key in keys)), subtask=subtask, **task)
    if commit:
        job.manager.finalize(task.get("query", QUERY), epoch)


def reached(standby: Standby, epoch: int, operator: str = "it") -> None:
    """Wait until the standby serves an epoch."""
    until(lambda: standby.status().epochs.get(operator, -1) >= epoch, f"the standby serves epoch {epoch}")


def settled(address: tuple[str, int], epoch: int) -> None:
    """Wait until every subtask of a job shows the epoch as committed: the report has no confirmation."""
    with QueryableStateClient(*address, timeout_s=20.0) as client:
        client.get_many(JOB, "totalAmount", KEYS, isolation="committed", min_epoch=epoch)


def total(address: tuple[str, int], key: str = KEYS[0], **options: Any) -> tuple[int, int]:
    """The total and its epoch that a client reads from `totalAmount`."""
    with QueryableStateClient(*address, timeout_s=20.0) as client:
        view = client.get(JOB, "totalAmount", key, isolation="committed", **options)
        return view.get(), view.epoch
