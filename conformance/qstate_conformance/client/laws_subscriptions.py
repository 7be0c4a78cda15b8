"""Subscriptions: an epoch is given when all of it has come, and each poll begins where the answer before ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.frames import POLL
from qstate_conformance.client.peer import Peer, Reply
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import client_of, keeps_working, needs
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.subjects import ClientSubject

MAX_PARALLELISM, HALF = 128, 64
PLACE = b"a place"
#: Keys of the first and of the second half of the key groups.
_KEYS = [f"key {number}" for number in range(32)]
LOW = [key for key in _KEYS if group_of(key, MAX_PARALLELISM) < HALF]
HIGH = [key for key in _KEYS if group_of(key, MAX_PARALLELISM) >= HALF]
Answer = Callable[[Request], Reply]


def _run(epoch: int, *keys: str) -> list[Any]:
    """Puts of keys, each with itself and the epoch as its value."""
    return [epoch, 1, None, list(keys), None, [pack(f"{key} in {epoch}") for key in keys]]


def _changes(stop: int, next_epoch: int, position: bytes, *runs: list[Any], **more: Any) -> Answer:
    return lambda request: frames.changes(request.id, stop, next_epoch, position, committed=9, runs=runs, **more)


def _answering(peer: Peer, answers: dict[tuple[tuple[int, int], tuple[int, bytes]], list[Answer]]) -> None:
    """Have the peer answer Polls of these key groups and places in their order, and keep all others waiting."""

    def answer(request: Request) -> Iterable[Reply]:
        if request.type != POLL:
            return peer.honest(request)
        first, stop = request.poll_groups
        left = answers.get(((first, min(stop, MAX_PARALLELISM)), request.poll_place))
        return [left.pop(0)(request)] if left else []

    peer.answer = answer


def _given(outcome: Outcome) -> list[tuple[int, list[Any]]]:
    assert not outcome.failed, outcome
    batches = outcome.body["batches"]
    assert not any(batch["snapshot"] for batch in batches), outcome
    for batch in batches:
        for change in batch["changes"]:
            expected = ("put", f"{change['key']} in {batch['epoch']}")
            assert (change["change"], change["value"]) == expected, f"{change} of epoch {batch['epoch']}"
    return [(batch["epoch"], [change["key"] for change in batch["changes"]]) for batch in batches]


@law("P-POLL-10", "P-POLL-3")
def test_an_epoch_is_given_when_all_of_it_has_come(subject: ClientSubject) -> None:
    """Changes of an epoch that come in several answers are given together, once, and before those of later epochs."""
    needs(subject, "subscribe")
    first, second, third = LOW[0], HIGH[0], LOW[1]
    everything = (0, MAX_PARALLELISM)
    with Peer() as peer:
        _answering(
            peer,
            {
                (everything, (4, b"")): [_changes(MAX_PARALLELISM, 4, PLACE, _run(4, first))],
                (everything, (4, PLACE)): [_changes(MAX_PARALLELISM, 5, PLACE + b"!", _run(4, second), _run(5, third))],
                (everything, (5, PLACE + b"!")): [_changes(MAX_PARALLELISM, 6, b"", _run(5, first, second))],
            },
        )
        with client_of(subject, peer) as client:
            given = _given(client.subscribe(5, from_epoch=4))
            keeps_working(subject, peer, client)
        assert peer.faults == []
    assert given == [(4, [first, second]), (5, [third, first, second])], given


@law("P-POLL-10", "P-POLL-4")
def test_an_epoch_begins_again_when_its_owner_has_fewer_key_groups(subject: ClientSubject) -> None:
    """When a place within an epoch was of another owner, each change of it is given once all the same."""
    needs(subject, "subscribe")
    low, high = (0, HALF), (HALF, MAX_PARALLELISM)
    everything = (0, MAX_PARALLELISM)
    with Peer() as peer:
        _answering(
            peer,
            {
                (everything, (4, b"")): [_changes(MAX_PARALLELISM, 4, PLACE, _run(4, LOW[0]))],
                # An owner of the first half: there was less before the place than it takes to be there.
                (everything, (4, PLACE)): [_changes(HALF, 5, b"", _run(4, LOW[1]))],
                (low, (4, b"")): [_changes(HALF, 5, b"", _run(4, LOW[0], LOW[1]))],
                (high, (4, b"")): [_changes(MAX_PARALLELISM, 5, b"", _run(4, HIGH[0]))],
            },
        )
        with client_of(subject, peer) as client:
            given = _given(client.subscribe(4, from_epoch=4))
        assert peer.faults == []
    assert sorted(given) == sorted([(4, [LOW[0], LOW[1]]), (4, [HIGH[0]])]), given


@law("P-POLL-10")
def test_owners_of_parts_are_followed_each_at_its_own_place(subject: ClientSubject) -> None:
    """An answer about fewer key groups is taken for these; the others are asked for from where they were."""
    needs(subject, "subscribe")
    low, high = (0, HALF), (HALF, MAX_PARALLELISM)
    with Peer() as peer:
        _answering(
            peer,
            {
                ((0, MAX_PARALLELISM), (4, b"")): [_changes(HALF, 6, b"", _run(4, LOW[0]), _run(5, LOW[1]))],
                (high, (4, b"")): [_changes(MAX_PARALLELISM, 5, b"", _run(4, HIGH[0]))],
                (high, (5, b"")): [_changes(MAX_PARALLELISM, 6, b"", _run(5, HIGH[1]))],
            },
        )
        with client_of(subject, peer) as client:
            given = _given(client.subscribe(5, from_epoch=4))
        polls = [(poll.poll_groups, poll.poll_place) for poll in peer.of_type(POLL)]
        assert peer.faults == []
    assert sorted(given) == sorted([(4, [LOW[0]]), (5, [LOW[1]]), (4, [HIGH[0]]), (5, [HIGH[1]])]), given
    assert (low, (4, b"")) not in polls, "the first half had everything up to epoch 5"


@law("P-POLL-12")
def test_changes_of_another_history_do_not_come_next(subject: ClientSubject) -> None:
    """When the history is another one, the client reports COMPACTED, or begins again with a snapshot."""
    needs(subject, "subscribe")
    everything = (0, MAX_PARALLELISM)
    before, after = ({"?history": number} for number in (17, (1 << 63) - 1))
    with Peer() as peer:
        _answering(
            peer,
            {
                (everything, (0, b"")): [_changes(MAX_PARALLELISM, 1, b"", _run(0, LOW[0]), attributes=before)],
                (everything, (1, b"")): [_changes(MAX_PARALLELISM, 2, b"", _run(1, LOW[1]), attributes=after)],
            },
        )
        with client_of(subject, peer) as client:
            outcome = client.subscribe(1, from_epoch=0)
        assert peer.faults == []
    first, *others = outcome.body["batches"]
    assert (first["epoch"], [change["key"] for change in first["changes"]]) == (0, [LOW[0]]), outcome
    if others:
        assert all(batch["snapshot"] for batch in others), outcome
    else:
        assert outcome.body["error"]["code"] == "COMPACTED", outcome
