"""Reading values: every kind of state, every MessagePack value, serializers and extension types."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.frames import FINGERPRINT, GET, LOCATE, PING
from qstate_conformance.client.peer import JOB, STATE, Peer, Reply, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import answering_gets, client_of, has_left, needs
from qstate_conformance.client.strategies import map_states, maps_with_array_keys, texts, values
from qstate_conformance.client.tagged import differs
from qstate_conformance.corpus import corpus
from qstate_conformance.laws import law
from qstate_conformance.packing import Ext, Pairs, pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

SINGLE_KINDS = ("value", "reducing", "aggregating")
#: A serializer that no client can know.
UNKNOWN_SERIALIZER = "conformance-unheard-of"
#: Entries of a Description.
MOST_ENTRIES = 32_768
#: The deadline of an answer of megabytes.
SLOWLY_S = 20.0


def _read(subject: ClientSubject, state: dict[str, Any], answer: bytes, epoch: int = 1) -> Outcome:
    with Peer(states=[state]) as peer:
        answering_gets(peer, lambda request: [frames.values(request.id, [answer], epoch)])
        with client_of(subject, peer) as client:
            return client.get("key")


def _reads(subject: ClientSubject, state: dict[str, Any], answer: bytes, expected: Any) -> None:
    outcome = _read(subject, state, answer)
    assert outcome.found, f"{answer.hex()} is not read: {outcome}"
    wrong = differs(expected, outcome.value)
    assert wrong is None, wrong


@law("P-VALUE-2")
@given(kind=st.sampled_from(SINGLE_KINDS), value=values)
def test_every_value_is_read(subject: ClientSubject, kind: str, value: Any) -> None:
    """Value, reducing and aggregating states give the MessagePack value that the answer holds, whatever it is."""
    _reads(subject, state_map(kind=kind), pack(value), value)


@law("P-VALUE-1", "P-VALUE-2")
@examples(0.5)
@given(elements=st.lists(values, max_size=6))
def test_a_list_state_gives_its_elements_in_order(subject: ClientSubject, elements: list[Any]) -> None:
    """A list state gives all its elements in their order."""
    _reads(subject, state_map(kind="list"), pack(elements), elements)


@law("P-VALUE-1", "P-VALUE-2")
@examples(0.5)
@given(entries=map_states)
def test_a_map_state_gives_its_entries(subject: ClientSubject, entries: Pairs) -> None:
    """A map state gives each entry; its keys are text, binary, integers, or arrays of these."""
    _reads(subject, state_map(kind="map"), pack(entries), entries)


@law("P-VALUE-2", "P-MSG-4")
def test_numbers_at_the_edges_are_read_exactly(subject: ClientSubject) -> None:
    """A client reads integers and floats at the limits of every form to the last digit."""
    edges = {1 << bits for bits in (0, 5, 7, 8, 15, 16, 31, 32, 53, 63)} | {(1 << 64) - 1}
    integers = sorted({sign * (edge + step) for edge in edges for step in (-1, 0, 1) for sign in (1, -1)})
    floats = [0.1, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, float("inf"), -float("inf"), float("nan")]
    for number in [*(n for n in integers if -(1 << 63) <= n < 1 << 64), *floats]:
        _reads(subject, state_map(), pack(number), number)


@law("P-VALUE-2")
@examples(0.3)
@given(value=maps_with_array_keys)
def test_map_keys_may_be_arrays(subject: ClientSubject, value: Pairs) -> None:
    """A map inside a value is read also when its keys are arrays."""
    _reads(subject, state_map(), pack([value]), [value])


@law("P-VALUE-2")
def test_deep_and_large_values_are_read(subject: ClientSubject) -> None:
    """A value that is nested 100 deep, and one of a million bytes, is read."""
    nested: Any = "inside"
    for _ in range(100):
        nested = [nested]
    for value in (nested, "x" * 1_000_000, bytes(1_000_000), list(range(20_000))):
        _reads(subject, state_map(), pack(value), value)


@law("P-VALUE-4")
def test_tuples_within_tuples_without_end_harm_nothing(subject: ClientSubject) -> None:
    """A value of extension type 1 within itself, 500 deep, is read or is unreadable; the client continues."""
    nested = pack([])
    for _ in range(500):
        nested = pack([Ext(1, nested)])
    with Peer() as peer:
        answering_gets(
            peer,
            lambda request: (
                [frames.values(request.id, [nested])] if request.keys[0] == "nested" else peer.honest(request)
            ),
        )
        with client_of(subject, peer) as client:
            outcome = client.get("nested")
            assert outcome.found or outcome.code == "UNREADABLE", outcome
            assert client.get("afterwards").value == "afterwards"


@law("P-VALUE-2")
def test_names_that_a_language_keeps_for_itself_are_read_as_data(subject: ClientSubject) -> None:
    """A client reads text that looks like code, and map keys with a meaning in its language, as data."""
    names = ["__proto__", "constructor", "toString", "__class__", "__init__", "__reduce__", "$hex", "length", ""]
    value = Pairs(tuple((name, Pairs(((name, "__import__('os').getpid()"),))) for name in names))
    _reads(subject, state_map(), pack(value), value)
    _reads(subject, state_map(kind="map"), pack(value), value)


@law("P-VALUE-1", "P-VALUE-2")
def test_the_golden_values_are_read(subject: ClientSubject) -> None:
    """A client reads every value of the golden corpus."""
    for entry in corpus()["values"]:
        if entry["serializer"] != "msgpack":
            continue
        answer = bytes.fromhex(entry["hex"])
        expected = msgpack.unpackb(
            answer, ext_hook=Ext, timestamp=0, strict_map_key=False, object_pairs_hook=_pairs, use_list=False
        )
        if isinstance(expected, msgpack.Timestamp):
            expected = Ext(-1, expected.to_bytes())
        _reads(subject, state_map(kind=entry["kind"]), answer, expected)


@law("P-VALUE-3")
def test_an_unknown_serializer_is_named_or_its_bytes_handed_out(subject: ClientSubject) -> None:
    """A client without the state's serializer reports its name, or hands out the bytes."""
    elements = [b"\x01\x02", b"", b"\xc1"]
    entries = Pairs((("EWR", b"\x01"), ("JFK", b"\xc1")))
    cases = [("value", b"\x01\xc1", b"\x01\xc1"), ("reducing", b"\xc1", b"\xc1"), ("list", pack(elements), elements)]
    for kind, answer, expected in [*cases, ("map", pack(entries), entries)]:
        outcome = _read(subject, state_map(kind=kind, serializer=UNKNOWN_SERIALIZER), answer)
        if outcome.failed:
            assert UNKNOWN_SERIALIZER in outcome.text, f"the client does not name the serializer: {outcome}"
        else:
            wrong = differs(expected, outcome.value)
            assert wrong is None, wrong


@law("P-VALUE-1")
@examples(0.2)
@given(contents=st.lists(texts, min_size=1, max_size=4, unique=True))
def test_a_serializer_that_the_client_has_reads_each_part(subject: ClientSubject, contents: list[str]) -> None:
    """With a serializer other than msgpack, a value, each element of a list and each value of a map is its bytes."""
    needs(subject, "serializer")
    written = [text.encode()[::-1] for text in contents]
    own = {"serializer": "conformance.reversed"}
    _reads(subject, state_map(**own), written[0], contents[0])
    _reads(subject, state_map(kind="reducing", **own), written[0], contents[0])
    _reads(subject, state_map(kind="list", **own), pack(written), contents)
    entries = Pairs(tuple(zip(contents, written, strict=True)))
    _reads(subject, state_map(kind="map", **own), pack(entries), dict(zip(contents, contents, strict=True)))


@law("P-GET-3")
def test_a_key_without_a_value_is_not_found_and_no_failure(subject: ClientSubject) -> None:
    """A nil result means that the state holds nothing for the key. A value that is nil is a value."""
    with Peer() as peer:
        answering_gets(peer, lambda request: [frames.values(request.id, [None])])
        with client_of(subject, peer) as client:
            outcome = client.get("key")
        assert not outcome.failed, outcome
        assert not outcome.found, outcome
    _reads(subject, state_map(), pack(None), None)


@law("P-GET-2", "P-GET-9")
@examples(0.3)
@given(epochs=st.lists(st.integers(-1, (1 << 53) - 1), min_size=1, max_size=8))
def test_each_result_has_the_epoch_that_it_is_from(subject: ClientSubject, epochs: list[int]) -> None:
    """Results of one Get may be from different epochs: where a client shows epochs, each result has its own."""
    needs(subject, "batch")
    with Peer() as peer:
        answering_gets(
            peer,
            lambda request: [
                frames.message(frames.VALUES, request.id, epochs, [b"\x01"] * len(request.keys), frames.FINGERPRINT)
            ],
        )
        with client_of(subject, peer) as client:
            outcome = client.get_many([f"key {index}" for index in range(len(epochs))])
    assert not outcome.failed, outcome
    told = [entry.get("epoch") for entry in outcome.body["results"]]
    assert told in (epochs, [None] * len(epochs)), f"the client shows the epochs {epochs} as {told}"


@law("P-DESC-1", "P-VERSION-2")
def test_what_a_newer_server_says_of_a_state_is_ignored(subject: ClientSubject) -> None:
    """A client reads and lists a state whose description has names that the client does not know."""
    state = state_map(new=1, newer=["a", "b"], newest=None, capabilities=["committed_reads", "time_travel"])
    with Peer(states=[state]) as peer, client_of(subject, peer) as client:
        assert client.get("key").value == "key"
        listed = client.describe(JOB)
        assert [entry["name"] for entry in listed.body["states"]] == ["state"], listed


@law("P-ATTR-1", "P-LOC-4", "P-VERSION-2")
def test_what_a_newer_server_adds_to_an_answer_is_ignored(subject: ClientSubject) -> None:
    """A client takes answers with attributes whose names begin with `?`, and owners with further elements."""
    added = {"?hint": "x", "?": None, "?load": 0.5}
    with Peer() as peer:

        def answer(request: Request) -> Iterable[Reply]:
            if request.type == GET:
                results = [pack(key) for key in request.keys]
                return [frames.message(frames.VALUES, request.id, [1] * len(results), results, FINGERPRINT, added)]
            if request.type == LOCATE:
                owner = (*peer.owner(), "zone", {"weight": 1})
                return [frames.message(frames.LOCATION, request.id, peer.states[STATE], 128, [owner], added)]
            if request.type == PING:
                return [frames.message(frames.PONG, request.id, added)]
            return [frames.message(frames.DESCRIPTION, request.id, [{"job": JOB}], added)]

        peer.answer = answer
        with client_of(subject, peer) as client:
            assert client.get("key").value == "key"
            assert client.describe().body.get("jobs") == [JOB]


@law("P-DESC-2")
def test_a_state_that_the_client_cannot_read_is_listed_and_only_reading_it_fails(subject: ClientSubject) -> None:
    """States of an unknown kind, key type or serializer are listed; a get of the unknown kind fails, of others not."""
    odd = [
        state_map("kind", kind="tree"),
        state_map("key", key_types=["uuid"]),
        state_map("serializer", serializer=UNKNOWN_SERIALIZER),
        state_map(),
    ]
    with Peer(states=odd) as peer, client_of(subject, peer) as client:
        listed = client.describe(JOB)
        names = tuple(state_map())
        told = [{name: entry.get(name) for name in names} for entry in listed.body.get("states", ())]
        assert told == [{name: state[name] for name in names} for state in odd], listed
        assert client.get("key", state="kind").failed
        assert client.get("key").value == "key"


@law("P-DESC-1")
@examples(0.2)
@given(jobs=st.lists(texts.filter(bool), max_size=8, unique=True))
def test_jobs_are_listed(subject: ClientSubject, jobs: list[str]) -> None:
    """The jobs of a Description are listed by their names as they are."""
    with Peer() as peer:
        peer.answer = lambda request: (
            [frames.description(request.id, [{"job": job, "more": 1} for job in jobs])]
            if request.type == frames.DESCRIBE
            else peer.honest(request)
        )
        with client_of(subject, peer) as client:
            assert client.describe().body.get("jobs") == jobs


@law("P-DESC-3", "P-DESC-1", "P-FRAME-4")
def test_as_many_entries_as_a_description_may_have_are_listed(subject: ClientSubject) -> None:
    """A Description of 32768 entries, of jobs or of states, is listed whole."""
    for job, name in ((None, "jobs"), (JOB, "states")):
        with Peer() as peer:
            peer.answer = partial(_many_entries, peer, MOST_ENTRIES)
            with client_of(subject, peer) as client:
                found = client.describe(job, timeout_s=SLOWLY_S)
        assert not found.failed, found
        listed = [entry if job is None else entry["name"] for entry in found.body[name]]
        assert listed == [_name(number) for number in range(MOST_ENTRIES)], f"{len(listed)} {name} are listed"


@law("P-DESC-3", "P-BROKEN-2")
def test_more_entries_than_a_description_may_have_end_the_connection(subject: ClientSubject) -> None:
    """A Description of 32769 entries breaks its table: the client closes, and lists nothing of it."""
    with Peer() as peer:

        def answer(request: Request) -> list[object]:
            first = peer.of_type(frames.DESCRIBE)[:1] == [request]
            return _many_entries(peer, MOST_ENTRIES + 1, request) if first else [*peer.honest(request)]

        peer.answer = answer
        with client_of(subject, peer) as client:
            asked = client.start_describe(None, timeout_s=SLOWLY_S)
            assert peer.wait_for(lambda: bool(peer.of_type(frames.DESCRIBE)), SLOWLY_S)
            assert has_left(peer, peer.connection_of(peer.of_type(frames.DESCRIBE)[0])), "the connection stays open"
            outcome = asked.outcome()
            assert outcome.failed or outcome.body["jobs"] == [JOB], f"{len(outcome.body['jobs'])} jobs are listed"


def _name(number: int) -> str:
    return f"name {number:05d}"


def _many_entries(peer: Peer, count: int, request: Request) -> list[object]:
    """A Description of so many jobs or states. Packing each of them would take seconds."""
    if request.type != frames.DESCRIBE:
        return [*peer.honest(request)]
    entry = pack({"job": _name(0)} if request.elements[3] is None else state_map(_name(0)))
    entries = (entry.replace(_name(0).encode(), _name(number).encode()) for number in range(count))
    opening = b"\x93" + pack(frames.DESCRIPTION) + pack(request.id) + b"\xdd" + count.to_bytes(4, "big")
    return [frames.frame(opening + b"".join(entries))]


def _pairs(entries: Any) -> Pairs:
    return Pairs(tuple(entries))
