"""The golden corpus: frames whose bytes and meaning are fixed, fed to a client as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from qstate_conformance.client import frames
from qstate_conformance.client.frames import DESCRIBE, GET
from qstate_conformance.client.peer import CLOSE, Peer, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import (
    always,
    answering_gets,
    client_of,
    connection,
    has_left,
    keeps_working,
    needs,
)
from qstate_conformance.corpus import corpus
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.subjects import ClientSubject


def _frame(name: str) -> bytes:
    (found,) = (entry for entry in [*corpus()["frames"], *corpus()["accepted"]] if entry["name"] == name)
    return bytes.fromhex(found["frame"])


def _for(request: Request, name: str) -> bytes:
    """A golden answer, in which the one byte of its id is replaced by the id of the request."""
    payload = _frame(name)[4:]
    return frames.frame(payload[:2] + pack(request.id) + payload[3:])


def _once(peer: Peer, kind: int, name: str) -> Callable[[Request], Iterable[object]]:
    """Answer the first request of a type with this golden frame, and everything else honestly."""

    def answer(request: Request) -> Iterable[object]:
        first = request.type == kind and len(peer.of_type(kind)) == 1
        return [_for(request, name)] if first else peer.honest(request)

    return answer


@law("P-HELLO-5", "P-MSG-4", "P-VERSION-1")
def test_the_golden_welcomes_are_taken(subject: ClientSubject) -> None:
    """Each golden Welcome opens the connection, and the client keeps its limits."""
    for name, max_frame, max_keys in (("welcome", 1 << 24, 10_000), ("welcome-of-a-newer-server", 4096, 1)):
        served = Peer(greet=always(_frame(name)), max_frame=max_frame, max_keys=max_keys)
        with served as peer, client_of(subject, peer) as client:
            assert client.get("key").value == "key"
            assert peer.faults == []


@law("P-VALUE-2", "P-GET-1", "P-GET-3")
def test_the_golden_values_are_taken(subject: ClientSubject) -> None:
    """The golden Values give a float, no value, and for the key whose group has moved the result of a later try."""
    needs(subject, "batch", "retry")
    (golden,) = (entry["fields"] for entry in corpus()["frames"] if entry["name"] == "values")
    with Peer(states=[state_map(fingerprint=golden["fingerprint"])]) as peer:
        peer.answer = _once(peer, GET, "values")
        with client_of(subject, peer) as client:
            outcome = client.get_many(["a", "b", "c"])
    assert not outcome.failed, outcome
    first, second, third = outcome.body["results"]
    assert (first.get("value"), second["found"], third.get("value")) == (39.02, False, "c")


@law("P-DESC-1", "P-VERSION-2")
def test_the_golden_descriptions_are_taken(subject: ClientSubject) -> None:
    """The golden Descriptions list their job and their state, names that the client does not know left out or not."""
    meaning: dict[str, dict[str, Any]] = {
        entry["name"]: entry["fields"] for entry in [*corpus()["frames"], *corpus()["accepted"]]
    }
    with Peer() as peer:
        peer.answer = _once(peer, DESCRIBE, "description-of-jobs")
        with client_of(subject, peer) as client:
            assert client.describe().body.get("jobs") == ["flights"]
    for name in ("description-of-states", "unknown-detail-of-a-state"):
        with Peer() as peer:
            peer.answer = _once(peer, DESCRIBE, name)
            with client_of(subject, peer) as client:
                (told,) = client.describe("flights").body["states"]
        (state,) = meaning[name]["entries"]
        known = tuple(state_map())
        assert {field: told[field] for field in known} == {field: state[field] for field in known}


@law("P-FAIL-1", "P-FAIL-2")
def test_the_golden_failures_are_taken(subject: ClientSubject) -> None:
    """The golden Failures are OVERLOADED, which may pass, INTERNAL for the unknown code, and the connection's end."""
    for name, code in (("failure-of-request", "OVERLOADED"), ("unknown-failure-code", "INTERNAL")):
        with Peer() as peer:
            peer.answer = _once(peer, GET, name)
            with client_of(subject, peer) as client:
                outcome = client.get("key")
        assert outcome.code == code or (code == "OVERLOADED" and outcome.value == "key"), f"{name} became {outcome}"
    with Peer(greet=always(_frame("failure-of-connection"), CLOSE)) as peer:
        with client_of(subject, peer, timeout_s=0.2) as client:
            assert client.get("key", timeout_s=0.2).code in ("VERSION_MISMATCH", "UNAVAILABLE", "DEADLINE_EXCEEDED")
        assert peer.requests == []


@law("P-BROKEN-2", "P-MSG-1", "P-FRAME-3")
def test_the_golden_broken_frames_end_the_connection(subject: ClientSubject) -> None:
    """A frame of the corpus that no receiver may take ends the connection also when a client receives it."""
    for entry in corpus()["broken"]["frames"]:
        spoilt: list[Request] = []
        with Peer(max_frame=65536) as peer:

            def answer(request: Request, entry: Any = entry, spoilt: Any = spoilt, peer: Peer = peer) -> Any:
                if spoilt:
                    return peer.honest(request)
                spoilt.append(request)
                return [bytes.fromhex(entry["frame"])]

            answering_gets(peer, answer)
            with client_of(subject, peer) as client:
                waiting = client.start_get("key", timeout_s=20.0) if client.number is not None else None
                assert has_left(peer, connection(peer)), f"{entry['name']} leaves the connection open"
                keeps_working(subject, peer, client)
                client.close()
                if waiting is not None:
                    waiting.outcome()
