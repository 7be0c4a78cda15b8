"""Subscribers whose epochs come to mean something else: the job begins again, or their token is of something else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.client import QueryableStateClient, Subscription
from qstate.errors import Compacted, ConfigError
from tests.runtime.client.written_job import JOB, STATE, WrittenJob


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WrittenJob]:
    job = WrittenJob(tmp_path)
    for value in range(3):
        job.commit({"a": value, "b": value})
    yield job
    job.close()


@pytest.fixture
def client(job: WrittenJob) -> Iterator[QueryableStateClient]:
    with QueryableStateClient(*job.proxy.address) as client:
        yield client


def keys_until(subscription: Subscription, epoch: int) -> list[str]:
    found: list[str] = []
    for batch in subscription:
        found += [str(change.key) for change in batch]
        if batch.complete >= epoch:
            break
    return found


def begin_again(job: WrittenJob) -> None:
    """The job begins from nothing, as one that takes its state from a savepoint does, and gets further than before."""
    job.begin()
    for value in range(6):
        job.commit({"a": value, "c": value})


def test_subscriber_is_told_that_the_job_began_again(job: WrittenJob, client: QueryableStateClient) -> None:
    with client.subscribe(JOB, STATE, progress_s=0.1) as subscription:
        assert sorted(keys_until(subscription, 2)) == ["a", "b"]
        begin_again(job)
        with pytest.raises(Compacted, match="begun again"):
            keys_until(subscription, 5)


def test_token_of_an_earlier_beginning_is_told(job: WrittenJob, client: QueryableStateClient) -> None:
    with client.subscribe(JOB, STATE, from_epoch=0) as subscription:
        batch = next(subscription)
        assert batch.token is not None
    begin_again(job)
    with client.subscribe(JOB, STATE, token=batch.token) as subscription, pytest.raises(Compacted, match="begun again"):
        next(subscription)


def test_snapshot_and_changes_are_of_one_history(job: WrittenJob, client: QueryableStateClient) -> None:
    with client.subscribe(JOB, STATE, "a", progress_s=0.1) as subscription:
        (change,) = next(subscription)
        assert change.value == 2
        begin_again(job)
        with pytest.raises(Compacted, match="begun again"):
            next(subscription)


def test_token_survives_a_loss_of_the_owners(job: WrittenJob, client: QueryableStateClient) -> None:
    with client.subscribe(JOB, STATE, from_epoch=0, progress_s=0.1) as subscription:
        keys_until(subscription, 2)
        job.lose()
        job.recover()
        job.commit({"c": 1})
        assert keys_until(subscription, 3) == ["c"]


def test_token_waits_for_a_job_that_has_restarted_and_processed_nothing_yet(job: WrittenJob) -> None:
    with QueryableStateClient(*job.proxy.address) as client:
        token = next(client.subscribe(JOB, STATE, "a")).token
    job.commit({"a": 9})
    job.unknown_for = 3
    client = QueryableStateClient(*job.proxy.address)
    with client, client.subscribe(JOB, STATE, "a", token=token) as subscription:
        assert keys_until(subscription, 3) == ["a"]


def test_token_for_other_keys_than_it_is_about_is_refused(job: WrittenJob, client: QueryableStateClient) -> None:
    with client.subscribe(JOB, STATE, "a") as subscription:
        of_a = next(subscription).token
        of_prefix = next(client.subscribe(JOB, STATE, prefix="a", namespace=None)).token
    others: list[dict[str, Any]] = [
        {},
        {"key": "b"},
        {"keys": ["a", "b"]},
        {"prefix": "b", "namespace": None},
        {"prefix": ("a",), "namespace": None},
        {"prefix": "a", "namespace": "w"},
    ]
    for other in others:
        for token in (of_a, of_prefix):
            with pytest.raises(ConfigError, match="other keys"):
                client.subscribe(JOB, STATE, token=token, **other)
    client.subscribe(JOB, STATE, keys=["a"], token=of_a).close()
    client.subscribe(JOB, STATE, prefix="a", namespace=None, token=of_prefix).close()
    with client.subscribe(JOB, STATE, from_epoch=3, progress_s=0.1) as subscription:
        job.commit({"c": 1})
        of_all = next(subscription).token
    job.commit({"a": 9, "b": 9})
    with client.subscribe(JOB, STATE, "b", token=of_all) as subscription:
        (change,) = next(subscription)
        assert (change.key, change.value) == ("b", 9)
