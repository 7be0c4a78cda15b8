"""Subscribers of a real job get exactly what was committed: through losses, restarts, other parallelisms, standbys."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from qstate.client import AsyncQueryableStateClient, ChangeBatch, ChangeKind, QueryableStateClient, Subscription
from qstate.errors import Compacted, ConfigError, QueryError, SerializationError, UnknownState
from qstate.standby import serve_checkpoint
from qstate.views import ReadOnlyReducingState
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, kill, rows_batch
from tests.runtime.job.test_checkpoints import KEYS, epoch_of_all

JobOf = Callable[..., RunningJob]
STATE = "totalAmount"


def commit(job: RunningJob, epoch: int) -> None:
    epoch_of_all(job, epoch)
    job.manager.finalize(QUERY, epoch)


class Subscriber:
    """What a subscription has given, key by key and epoch by epoch."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.values: dict[str, dict[int, Any]] = {}
        self.repeated: Counter[tuple[str, int]] = Counter()
        self.complete = -1

    def take(self, batch: ChangeBatch) -> None:
        assert {change.epoch for change in batch} <= {batch.epoch}, "a batch is of one epoch"
        for change in batch:
            assert change.kind is ChangeKind.PUT
            known = self.values.setdefault(str(change.key), {})
            self.repeated[str(change.key), change.epoch] += change.epoch in known
            assert not known or max(known) < change.epoch, "the epochs of a key ascend"
            known[change.epoch] = change.value
        assert batch.complete >= self.complete
        self.complete = batch.complete

    def follow(self, epoch: int) -> None:
        """Until everything up to this epoch is there."""
        while self.complete < epoch:
            batch = self.subscription.next_batch(30.0)
            assert batch is not None, f"nothing after epoch {self.complete}"
            self.take(batch)


def truth(epochs: range, keys: Sequence[str] = KEYS) -> dict[str, dict[int, int]]:
    """Each epoch adds one to each key."""
    return {key: {epoch: epoch + 1 for epoch in epochs} for key in keys}


def client_of(job: RunningJob, **options: Any) -> QueryableStateClient:
    return QueryableStateClient(*job.manager.wait_for_proxy(20.0), **options)


def test_every_committed_change_of_all_keys_and_of_one(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2)
    commit(job, 0)
    with client_of(job) as client:
        everything = Subscriber(client.subscribe(JOB, STATE, from_epoch=0))
        one = Subscriber(client.state(JOB, STATE, ReadOnlyReducingState[int]).subscribe(KEYS[2]))
        with_snapshot = Subscriber(client.subscribe(JOB, STATE, prefix="key 1"))
        with_snapshot.follow(0)
        everything.follow(0)
        one.follow(0)
        assert one.values == truth(range(1), KEYS[2:3]), "it begins with a snapshot"
        epoch_of_all(job, 1)
        assert everything.subscription.next_batch(0.1) is None, "epoch 1 is not committed"
        job.manager.finalize(QUERY, 1)
        for epoch in (2, 3):
            commit(job, epoch)
        everything.follow(3)
        one.follow(3)
        with_snapshot.follow(3)
        late = Subscriber(client.subscribe(JOB, STATE))
        late.follow(3)
    assert everything.values == truth(range(4))
    assert with_snapshot.values == truth(range(4), [key for key in KEYS if key.startswith("key 1")])
    assert late.values == truth(range(3, 4))
    assert one.values == truth(range(4), KEYS[2:3])


def test_subscriber_goes_on_through_a_loss_and_another_parallelism(job_of: JobOf, tmp_path: Path) -> None:
    """Neither a gap nor a repetition, though nothing reports the last epoch as committed before the end."""
    job = job_of(Totals(), parallelism=2)
    commit(job, 0)
    port = job.manager.wait_for_proxy(20.0)[1]
    fixed = {"proxy_ports": f"{port},0"}
    client = client_of(job)
    with client:
        subscriber = Subscriber(client.subscribe(JOB, STATE, from_epoch=0, progress_s=0.5))
        subscriber.follow(0)
        kill(next(manager for manager in job.manager.task_managers() if manager.index == 1))
        for epoch in (1, 2):
            commit(job, epoch)
        subscriber.follow(2)
        epoch_of_all(job, 3)
        job.stop()
        job = job_of(Totals(), parallelism=3, **fixed)
        for epoch in (4, 5, 6):
            commit(job, epoch)
        subscriber.follow(6)
    assert subscriber.values == truth(range(7))
    assert not +subscriber.repeated


def test_token_continues_where_it_was_given(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2)
    for epoch in range(3):
        commit(job, epoch)
    given: list[dict[str, dict[int, int]]] = []
    token = None
    with client_of(job) as client:
        # A new subscription for each batch.
        while True:
            begin: dict[str, Any] = {"from_epoch": 0} if token is None else {"token": token}
            with client.subscribe(JOB, STATE, progress_s=0.1, **begin) as subscription:
                batch = subscription.next_batch(20.0)
            assert batch is not None
            token = batch.token
            given.append({str(change.key): {change.epoch: change.value} for change in batch})  # type: ignore[dict-item]
            if batch.complete == 2:
                break
    found: dict[str, dict[int, int]] = {}
    for batch_values in given:
        for key, values in batch_values.items():
            assert not found.setdefault(key, {}).keys() & values.keys(), "a change was repeated"
            found[key].update(values)
    assert found == truth(range(3))


def test_standby_goes_on_when_the_job_ends(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2)
    commit(job, 0)
    address = job.manager.wait_for_proxy(20.0)
    settings = {"proxy_ports": "0", "server_ports": "0", "interval_s": 0.05}
    with (
        serve_checkpoint(job.manager.checkpoint_dir, **settings) as standby,  # type: ignore[arg-type]
        QueryableStateClient(*address, fallback=[standby.address]) as client,
    ):
        subscriber = Subscriber(client.subscribe(JOB, STATE, from_epoch=0, progress_s=0.5))
        subscriber.follow(0)
        for epoch in (1, 2):
            commit(job, epoch)
        job.stop()
        subscriber.follow(2)
        late = Subscriber(client.subscribe(JOB, STATE, KEYS[1], progress_s=0.5))
        late.follow(2)
        assert late.values == {KEYS[1]: {2: 3}}
        job = job_of(Totals(), parallelism=2, proxy_ports=f"{address[1]},0")
        for epoch in (3, 4):
            commit(job, epoch)
        subscriber.follow(4)
        late.follow(4)
    assert subscriber.values == truth(range(5))
    assert late.values == truth(range(2, 5), KEYS[1:2])


def test_subscriber_that_is_too_far_behind_is_told(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=1, snapshot_interval=1, retained_snapshots=1)
    for epoch in range(5):
        commit(job, epoch)
        job.wait_for_snapshots()
    with client_of(job) as client:
        with client.subscribe(JOB, STATE, from_epoch=0) as subscription, pytest.raises(Compacted) as caught:
            subscription.next_batch(20.0)
        oldest = caught.value.details["oldest_epoch"]
        assert isinstance(oldest, int) and 0 < oldest <= 5


def test_subscription_of_what_is_not_there_fails(job_of: JobOf) -> None:
    job = job_of(Totals())
    commit(job, 0)
    with client_of(job, timeout_s=5.0) as client:
        with client.subscribe(JOB, "nothing", from_epoch=0) as subscription, pytest.raises(UnknownState):
            subscription.next_batch()
        with pytest.raises(ConfigError, match="not both"):
            client.subscribe(JOB, STATE, "key", prefix="k")
        with pytest.raises(ConfigError, match="token"):
            client.subscribe(JOB, STATE, token="nonsense")
        subscription = client.subscribe(JOB, STATE, 7)
        with pytest.raises(QueryError):
            subscription.next_batch()


def test_subscription_of_a_typed_handle_checks_the_values(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2)
    commit(job, 0)
    wrong, right = ReadOnlyReducingState[str], ReadOnlyReducingState[int]
    with client_of(job) as client:
        (change,) = client.state(JOB, STATE, wrong).subscribe(KEYS[2]).next_batch(10.0) or ()
        with pytest.raises(SerializationError, match=r"state 'totalAmount' of job .* is no str"):
            print(change.value)

    async def follow() -> list[object]:
        async with await AsyncQueryableStateClient.connect(*job.manager.wait_for_proxy(20.0)) as client:
            batches = [await client.state(JOB, STATE, one).subscribe(KEYS[2]).next_batch() for one in (right, wrong)]
            return [change for batch in batches for change in batch or ()]

    good, bad = asyncio.run(follow())
    assert good.value == 1
    with pytest.raises(SerializationError):
        print(bad.value)


def test_asynchronous_subscriptions_share_a_connection(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2)
    commit(job, 0)

    async def follow() -> list[dict[int, object]]:
        async with await AsyncQueryableStateClient.connect(*job.manager.wait_for_proxy(20.0)) as client:
            subscriptions = [client.subscribe(JOB, STATE, key, progress_s=0.5) for key in KEYS[:7]]

            async def all_of(number: int) -> dict[int, object]:
                found: dict[int, object] = {}
                async for batch in subscriptions[number]:
                    found.update((change.epoch, change.value) for change in batch)
                    if batch.complete >= 2:
                        return found
                raise AssertionError("it ended")

            waiting = [asyncio.create_task(all_of(number)) for number in range(7)]
            for epoch in (1, 2):
                await asyncio.to_thread(commit, job, epoch)
            return list(await asyncio.gather(*waiting))

    for found in asyncio.run(follow()):
        assert found[2] == 3 and all(value == epoch + 1 for epoch, value in found.items())


def test_epoch_without_changes_of_the_key_is_progress(job_of: JobOf) -> None:
    job = job_of(Totals())
    commit(job, 0)
    with client_of(job) as client:
        subscriber = Subscriber(client.subscribe(JOB, STATE, KEYS[0], progress_s=0.2))
        subscriber.follow(0)
        job.epoch(1, rows_batch((KEYS[1], 1)))
        job.manager.finalize(QUERY, 1)
        subscriber.follow(1)
    assert subscriber.values == {KEYS[0]: {0: 1}}
