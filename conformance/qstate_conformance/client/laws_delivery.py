"""Delivery: however answers are cut, joined and ordered, each goes to the request that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.frames import CODES, DESCRIBE, GET, LOCATE
from qstate_conformance.client.peer import Peer, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import answering_gets, client_of, declares, needs, when_quiet
from qstate_conformance.client.strategies import cuts
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

#: What stands between two names when somebody puts them together; nothing, most of all.
SEPARATORS = ("", "/", ".", ":", "-", "_", " ", ",", "|", "\0")
#: Of so many keys a large get consists, and of so many gets a long run.
LARGE_GET, LONG_RUN = 5_000, 20_000
#: What the keys that begin with `failed` fail with.
FATAL_CODE = "FORBIDDEN"


def _result(key: Any, namespace: Any) -> Any:
    """The right result: it names its request."""
    if key.startswith("none"):
        return None
    return CODES[FATAL_CODE] if key.startswith("failed") else pack([namespace, key])


def _right(request: Request) -> bytes:
    return frames.values(request.id, [_result(key, request.namespace) for key in request.keys])


def _check(outcome: Outcome, key: str, namespace: Any) -> None:
    if key.startswith("failed"):
        assert outcome.code == FATAL_CODE, f"{key!r} in {namespace!r} became {outcome}"
    elif key.startswith("none"):
        assert not outcome.failed, f"{key!r} in {namespace!r} became {outcome}"
        assert not outcome.found, f"{key!r} in {namespace!r} became {outcome}"
    else:
        assert outcome.value == [namespace, key], f"{key!r} in {namespace!r} became {outcome}"


@law("P-FRAME-4")
@examples(0.5)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_answers_may_come_in_any_pieces(subject: ClientSubject, sizes: list[int]) -> None:
    """The Welcome and the answers are read however the stream is cut."""
    with Peer(greet=lambda made: cuts(frames.welcome(), sizes)) as peer:
        peer.answer = lambda request: [piece for whole in peer.honest(request) for piece in cuts(whole, sizes)]  # type: ignore[arg-type]
        with client_of(subject, peer) as client:
            assert client.get("key").value == "key"
            assert client.describe("job").body["states"][0]["name"] == "state"


@law("P-FRAME-4")
def test_answers_may_come_byte_by_byte(subject: ClientSubject) -> None:
    """Everything that a server sends may come one byte at a time."""
    with Peer(greet=lambda made: cuts(frames.welcome(), [1])) as peer:
        peer.answer = lambda request: [piece for whole in peer.honest(request) for piece in cuts(whole, [1])]  # type: ignore[arg-type]
        with client_of(subject, peer) as client:
            assert client.get("key").value == "key"
            assert client.get("x" * 500).value == "x" * 500


@law("P-FRAME-4", "P-MSG-2", "P-REQ-2")
@examples(0.2)
@given(seed=st.integers(0, 1 << 32), number=st.integers(2, 12), together=st.booleans())
def test_answers_in_any_order_reach_their_own_requests(
    subject: ClientSubject, seed: int, number: int, together: bool
) -> None:
    """Many requests in flight, answered in any order, one by one or in one write: each has its own answer."""
    needs(subject, "async")
    order = Random(seed)
    with Peer() as peer:
        answering_gets(peer, lambda request: [])

        def answer(waiting: list[Request]) -> None:
            order.shuffle(waiting)
            _answer(peer, waiting, together)

        with client_of(subject, peer) as client:
            asked = [(_kind(index), index % 3) for index in range(number)]
            pending = [client.start_get(key, namespace=namespace) for key, namespace in asked]
            when_quiet(peer, pending, answer)
            for (key, namespace), operation in zip(asked, pending, strict=True):
                _check(operation.outcome(), key, namespace)
        assert peer.faults == []


def _kind(index: int) -> str:
    return f"{('value', 'none', 'value', 'failed', 'value')[index % 5]} {index}"


def _answer(peer: Peer, requests: list[Request], together: bool) -> None:
    if not together:
        for request in requests:
            peer.connection_of(request).answer(request, _right(request))
        return
    for made in peer.connections:
        own = [request for request in requests if request.connection == made.number]
        for request in own:
            made.in_flight.pop(request.id, None)
        made.send(b"".join(map(_right, own)))


@law("P-GET-1", "P-GET-3")
@examples(0.3)
@given(kinds=st.lists(st.sampled_from(["value", "none"]), min_size=1, max_size=12))
def test_the_results_of_many_keys_are_in_their_order(subject: ClientSubject, kinds: list[str]) -> None:
    """A get of many keys gives each key its own result, found or not."""
    needs(subject, "batch")
    wanted = [f"{kind} {index}" for index, kind in enumerate(kinds)]
    with Peer() as peer:
        answering_gets(peer, lambda request: [_right(request)])
        with client_of(subject, peer) as client:
            outcome = client.get_many(wanted)
    assert not outcome.failed, outcome
    for key, entry in zip(wanted, outcome.body["results"], strict=True):
        _check(Outcome(entry), key, None)


@law("P-GET-2")
def test_one_failed_key_of_many_is_not_passed_over(subject: ClientSubject) -> None:
    """When one key of many has failed, the call fails with its code, or says it for that key alone."""
    needs(subject, "batch")
    wanted = ["value 1", "failed 2", "value 3"]
    with Peer() as peer:
        answering_gets(peer, lambda request: [_right(request)])
        with client_of(subject, peer) as client:
            outcome = client.get_many(wanted)
    if outcome.failed:
        assert outcome.code == FATAL_CODE
        return
    first, second, third = outcome.body["results"]
    assert (first.get("value"), third.get("value")) == ([None, "value 1"], [None, "value 3"])
    assert second.get("error", {}).get("code") == FATAL_CODE, second


@law("P-GET-1", "P-MSG-2")
def test_states_of_different_kinds_are_not_mixed_up(subject: ClientSubject) -> None:
    """Gets of states of different kinds, in turn on one client, are each read as their own kind."""
    contents = {"value": [1, 2], "list": [1, 2], "map": {"a": 1}, "reducing": 3, "aggregating": 4.5}
    states = [state_map(f"a {kind}", kind=kind) for kind in contents]
    with Peer(states=states) as peer:
        answering_gets(peer, lambda request: [frames.values(request.id, [pack(_contents(request, contents))])])
        with client_of(subject, peer) as client:
            for _ in range(2):
                for kind, expected in contents.items():
                    outcome = client.get("key", state=f"a {kind}")
                    told = {"$map": [["a", 1]]} if kind == "map" else expected
                    assert outcome.value == told, f"a {kind} state became {outcome}"


def _contents(request: Request, contents: dict[str, Any]) -> Any:
    return contents[request.target[1].removeprefix("a ")]


@law("P-GET-1", "P-MSG-5")
def test_names_that_run_together_are_kept_apart(subject: ClientSubject) -> None:
    """A client keeps two states apart whose job and state names, joined, are the same text."""
    for between in SEPARATORS:
        # Of one pair the state is a list, of the other a map.
        pairs = [("a", f"b{between}c"), (f"a{between}b", "c")]
        with Peer() as peer:
            peer.answer = partial(_lists_and_maps, peer, pairs)
            with client_of(subject, peer) as client:
                for _ in range(2):
                    found = [client.get("key", job=job, state=state).value for job, state in pairs]
                    assert found == [[1, 2], {"$map": [["a", 1]]}], f"{pairs} became {found}"


def _lists_and_maps(peer: Peer, pairs: list[tuple[str, str]], request: Request) -> Iterable[object]:
    """A list for the first of two pairs of a job and a state, a map for the second."""
    if request.type == GET:
        return [frames.values(request.id, [pack([1, 2] if request.target == pairs[0] else {"a": 1})])]
    if request.type == LOCATE:
        job, state = request.elements[3:]
        described = state_map(state, kind="list" if (job, state) == pairs[0] else "map")
        return [frames.location(request.id, described, [peer.owner()])]
    if request.type == DESCRIBE and request.elements[3] is not None:
        kinds = zip(pairs, ("list", "map"), strict=True)
        states = [state_map(name, kind=kind) for (job, name), kind in kinds if job == request.elements[3]]
        return [frames.description(request.id, states)]
    return peer.explain(request)


@law("P-GET-1", "P-GET-3", "P-REQ-4")
def test_every_result_of_a_large_get_is_in_its_place(subject: ClientSubject) -> None:
    """A get of thousands of keys, with a value or without, gives each key its own result, in however many requests."""
    needs(subject, "batch")
    wanted = [f"{('value', 'none', 'value')[number % 3]} {number}" for number in range(LARGE_GET)]
    with Peer(max_keys=LARGE_GET // 2 - 1) as peer:
        answering_gets(peer, lambda request: [_right(request)])
        with client_of(subject, peer) as client:
            outcome = client.get_many(wanted)
        assert peer.faults == []
    assert not outcome.failed, outcome
    for key, entry in zip(wanted, outcome.body["results"], strict=True):
        _check(Outcome(entry), key, None)


@law("P-REQ-1", "P-REQ-2", "P-MSG-2", soak=True)
def test_twenty_thousand_gets_of_one_client_are_answered(subject: ClientSubject) -> None:
    """A client gets the last of 20,000 values like the first, over the same connection."""
    at_once = 32 if declares(subject, "async") else 1
    with Peer() as peer, client_of(subject, peer) as client:
        for start in range(0, LONG_RUN, at_once):
            keys = [f"key {number}" for number in range(start, start + at_once)]
            pending = [client.start_get(key, namespace=start) for key in keys]
            for key, operation in zip(keys, pending, strict=True):
                outcome = operation.outcome()
                assert outcome.value == key, f"the get of {key!r} became {outcome}"
        assert len(peer.connections) == len({get.connection for get in peer.gets}), "a connection was made for nothing"
        assert peer.faults == []


@law("P-MSG-2", "P-REQ-1")
def test_two_clients_keep_to_themselves(subject: ClientSubject) -> None:
    """Two clients in one program, with requests in flight at two servers, get each server's own answers."""
    with Peer() as left, Peer() as right:
        answering_gets(left, lambda request: [frames.values(request.id, [pack("left")])])
        answering_gets(right, lambda request: [frames.values(request.id, [pack("right")])])
        with client_of(subject, left) as one, client_of(subject, right) as other:
            for _ in range(3):
                assert (one.get("key").value, other.get("key").value) == ("left", "right")
