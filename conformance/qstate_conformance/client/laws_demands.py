"""Demands: what a get says about the epoch and the age of its answer, and what follows when they are not met."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.frames import CODES
from qstate_conformance.client.peer import Peer
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import (
    answering_gets,
    client_of,
    connection,
    gets_sent,
    has_left,
    keeps_working,
    more_gets_come,
    needs,
    refuses_gets,
)
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

SHORT_S = 0.3
#: How long nothing more must come after a request has ended.
AFTERWARDS_S = 0.25
#: Up to what every language can say exactly.
_NUMBERS = st.integers(0, (1 << 53) - 1)
_DEMANDS = st.fixed_dictionaries({}, optional={"min_epoch": _NUMBERS, "max_staleness_ms": st.integers(0, 1 << 31)})
_REFUSALS: dict[str, dict[str, Any]] = {
    "EPOCH_NOT_REACHED": {"min_epoch": 7},
    "TOO_STALE": {"max_staleness_ms": 250},
    "NO_COMMITTED_EPOCH": {},
}


def _options(demands: dict[str, int], committed: bool) -> dict[str, Any]:
    return {**demands, "isolation": "committed"} if committed else dict(demands)


@law("P-GET-11", "P-GET-12", "P-MSG-6", "P-MSG-7", "P-MSG-8")
@examples(0.3)
@given(demands=_DEMANDS, committed=st.booleans())
@example(demands={"min_epoch": 1 << 32}, committed=False)  # beyond 32 bits a client wrote a float
def test_a_get_says_what_is_demanded(subject: ClientSubject, demands: dict[str, int], committed: bool) -> None:
    """A Get carries exactly the caller's demands, as integers."""
    needs(subject, "demands")
    with Peer() as peer, client_of(subject, peer) as client:
        outcome = client.get("key", **_options(demands, committed))
        assert peer.faults == []
        assert outcome.value == "key", outcome
        (get,) = peer.gets
        sent = {name: value for name, value in get.options.items() if name != "isolation"}
        assert sent == demands, f"{demands} became {sent}"
        assert {type(value) for value in sent.values()} <= {int}
        assert get.options.get("isolation", "live") == ("committed" if committed else "live")


@law("P-GET-11", "P-GET-12", "P-GET-13", "P-GET-15", "P-RETRY-1")
def test_a_demand_that_is_not_met_yet_is_made_again_as_it_was(subject: ClientSubject) -> None:
    """A client sends a get that was refused twice for its demand again, with the same options, and gets the answer."""
    needs(subject, "demands", "retry")
    for name, demands in _REFUSALS.items():
        for whole in (True, False):
            with Peer() as peer:

                def answer(request: Request, peer: Peer = peer, name: str = name, whole: bool = whole) -> Any:
                    if len(peer.gets) > 2:
                        return [frames.values(request.id, [pack(key) for key in request.keys], epoch=7)]
                    return [_refusal(request, name, whole)]

                answering_gets(peer, answer)
                with client_of(subject, peer) as client:
                    outcome = client.get("key", isolation="committed", **demands)
                assert outcome.value == "key", f"after two {name}: {outcome}"
                assert outcome.body["epoch"] in (7, None), outcome
                assert [get.options for get in peer.gets] == [{"isolation": "committed", **demands}] * 3


def _refusal(request: Request, name: str, whole: bool) -> bytes:
    if whole:
        return frames.failure(request.id, CODES[name], {"epoch": 6, "staleness_ms": 900})
    return frames.values(request.id, [CODES[name]] * len(request.keys))


@law("P-GET-11", "P-GET-12", "P-RETRY-1")
def test_a_demand_that_is_never_met_fails_by_the_deadline(subject: ClientSubject) -> None:
    """A get that is always refused for its demand ends by its deadline with that code, and is not sent again."""
    needs(subject, "demands")
    for name, demands in _REFUSALS.items():
        with Peer() as peer:
            refuses_gets(peer, _refusing(name))
            with client_of(subject, peer) as client:
                outcome = client.get("key", timeout_s=SHORT_S, isolation="committed", **demands)
                tries = gets_sent(peer, client)
                assert outcome.code in (name, "DEADLINE_EXCEEDED"), f"{name} became {outcome}"
                assert not more_gets_come(peer, tries, AFTERWARDS_S), f"after {name} had ended it was sent again"


def _refusing(name: str) -> Any:
    return lambda request: _refusal(request, name, True)


@law("P-GET-11", "P-GET-13", "P-GET-9")
def test_keys_whose_demand_is_not_met_are_asked_for_again_beside_others(subject: ClientSubject) -> None:
    """Of several keys, those that are refused for the demand are asked for again; in the end each has its value."""
    needs(subject, "demands", "batch", "retry")
    with Peer() as peer:

        def answer(request: Request) -> Iterable[bytes]:
            early = len(peer.gets) == 1
            results = [CODES["EPOCH_NOT_REACHED"] if early and key == "b" else pack(key) for key in request.keys]
            return [frames.values(request.id, results, epoch=7)]

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            outcome = client.get_many(["a", "b", "c"], min_epoch=7)
        assert not outcome.failed, outcome
        assert [entry.get("value") for entry in outcome.body["results"]] == ["a", "b", "c"]
        assert all(get.options == {"min_epoch": 7} for get in peer.gets)


@law("P-REQ-6", "P-GET-11", "P-BROKEN-2")
def test_an_answer_of_an_earlier_epoch_than_demanded_ends_the_connection(subject: ClientSubject) -> None:
    """When a value or nil is of an epoch before min_epoch, the client drops it and closes the connection."""
    needs(subject, "demands")
    wrong: dict[str, Any] = {"a value": pack("of an earlier epoch"), "nil": None}
    for name, result in wrong.items():
        for isolation in ("live", "committed"):
            early: list[Request] = []
            with Peer() as peer:
                answering_gets(peer, partial(_too_early, peer, early, result))
                with client_of(subject, peer) as client:
                    outcome = client.get("key", min_epoch=7, isolation=isolation)
                    assert outcome.failed or outcome.value == "key", f"{name} of epoch 6 became {outcome}"
                    assert has_left(peer, connection(peer, early[0].connection)), f"{name} of epoch 6 is taken"
                    keeps_working(subject, peer, client)


def _too_early(peer: Peer, early: list[Request], result: Any, request: Request) -> Iterable[object]:
    if early:
        return peer.honest(request)
    early.append(request)
    return [frames.values(request.id, [result] * len(request.keys), epoch=6)]


@law("P-REQ-6", "P-GET-11", "P-GET-2")
def test_one_result_of_an_earlier_epoch_spoils_an_answer(subject: ClientSubject) -> None:
    """Of several results, one of an earlier epoch than demanded makes the answer wrong; a failed one has no epoch."""
    needs(subject, "demands", "batch")
    keys = ["a", "b", "c"]
    for at in range(len(keys)):
        with Peer() as peer:
            epochs = [6 if index == at else 7 for index in range(len(keys))]
            answering_gets(peer, partial(_of_epochs, epochs))
            with client_of(subject, peer) as client:
                assert client.get_many(keys, min_epoch=7, timeout_s=SHORT_S).failed
    with Peer() as peer:
        answering_gets(
            peer,
            lambda request: [
                frames.message(
                    frames.VALUES,
                    request.id,
                    [7, -1, 8],
                    [pack("a"), CODES["FORBIDDEN"], pack("c")],
                    frames.FINGERPRINT,
                )
            ],
        )
        with client_of(subject, peer) as client:
            outcome = client.get_many(keys, min_epoch=7)
            told = outcome.body.get("results", [{}, {}])[1].get("error", {}).get("code")
            assert "FORBIDDEN" in (outcome.code, told), outcome


def _of_epochs(epochs: list[int], request: Request) -> Iterable[object]:
    return [frames.message(frames.VALUES, request.id, epochs, [pack(key) for key in request.keys], frames.FINGERPRINT)]
