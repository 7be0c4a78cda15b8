"""What a client sends: every message sound, within the limits of the Welcome, and saying what was asked."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Outcome
from qstate_conformance.client.peer import Peer, state_map
from qstate_conformance.client.stage import answering_gets, client_of, keeps_working, needs
from qstate_conformance.client.strategies import keys, names
from qstate_conformance.client.tagged import differs
from qstate_conformance.laws import law
from qstate_conformance.packing import Ext, pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

#: What is no key: the client refuses to send it.
NO_KEYS: tuple[Any, ...] = (
    None,
    1.5,
    {"a": 1},
    ("a",),
    (),
    ("a", None),
    ("a", 1.5),
    ("a", ("b", "c")),
    1 << 63,
    -(1 << 63) - 1,
    ("a", 1 << 63),
)
NO_NAMES = ("", "x" * 256)


def _column_types(key: Any) -> list[str]:
    kinds = {str: "string", bytes: "binary", int: "bigint", bool: "boolean"}
    extensions = {-1: "timestamp", 3: "date", 4: "decimal(38,2)"}
    columns = key if isinstance(key, tuple) and not isinstance(key, Ext) else (key,)
    return [extensions[column.code] if isinstance(column, Ext) else kinds[type(column)] for column in columns]


def _states(key: Any) -> list[dict[str, Any]]:
    return [state_map(key_types=_column_types(key))]


@law(
    *("P-FRAME-1", "P-MSG-1", "P-MSG-2", "P-MSG-3", "P-MSG-5", "P-MSG-6", "P-MSG-7", "P-MSG-8", "P-MSG-9"),
    *("P-REQ-1", "P-KEY-1", "P-KEY-2", "P-KEY-5", "P-KEY-6", "P-ATTR-2"),
)
@examples(0.5)
@given(job=names, key=keys, namespace=st.none() | keys, committed=st.booleans())
def test_a_get_says_what_was_asked_in_sound_messages(
    subject: ClientSubject, job: str, key: Any, namespace: Any, committed: bool
) -> None:
    """Every message is sound, and the Get has the key and the namespace as they are, and the isolation asked for."""
    isolation: dict[str, Any] = {"isolation": "committed"} if committed else {}
    with Peer(states=_states(key)) as peer, client_of(subject, peer) as client:
        outcome = client.get(key, job=job, namespace=namespace, **isolation)
        assert peer.faults == []
        assert len(peer.gets) == 1, f"the get became {outcome}, after the requests {peer.requests}"
        get = peer.gets[0]
        assert (get.target, get.namespace, get.keys) == ((job, "state"), namespace, (key,))
        assert get.options.get("isolation", "live") == ("committed" if committed else "live")
        assert set(get.options) <= {"isolation"}
        assert differs(key, outcome.value) is None, outcome


@law("P-KEY-2", "P-MSG-6")
def test_integers_of_every_size_are_sent_as_integers(subject: ClientSubject) -> None:
    """An integer in a key or a namespace is sent as the integer that it is, never as a float, up to 64 bits."""
    edges = [1 << bits for bits in (0, 7, 8, 15, 16, 31, 32, 33, 53, 62)]
    integers = [sign * (edge + step) for edge in edges for step in (-1, 0, 1) for sign in (1, -1)]
    with Peer(states=[state_map(key_types=["bigint"])]) as peer, client_of(subject, peer) as client:
        for number in [*integers, (1 << 63) - 1, -(1 << 63)]:
            outcome = client.get(number, namespace=number)
            assert peer.faults == []
            assert (*peer.gets[-1].keys, peer.gets[-1].namespace) == (number, number)
            assert differs(number, outcome.value) is None, outcome


@law("P-KEY-5", "P-MSG-5")
def test_text_is_not_normalized(subject: ClientSubject) -> None:
    """A client sends text unchanged, also text that Unicode calls equivalent or that a platform would normalize."""
    with Peer() as peer, client_of(subject, peer) as client:
        for text in (
            "Z\u00fcrich",
            "Zu\u0308rich",
            "\ufb01",
            "\u212b",
            " padded ",
            "a\r\nb",
            "\ufeffmark",
            "a\x00b",
            "\U0001f600",
        ):
            outcome = client.get(text, namespace=text)
            (key,) = peer.gets[-1].keys
            assert (key, peer.gets[-1].namespace) == (text, text), f"{text!r} became {key!r}"
            assert outcome.value == text, outcome


@law("P-MSG-3", "P-MSG-5", "P-DESC-1")
@examples(0.2)
@given(job=st.none() | names)
def test_a_describe_says_what_was_asked(subject: ClientSubject, job: str | None) -> None:
    """A Describe is a sound message with the job's name as it is, or nil for the list of jobs."""
    with Peer() as peer, client_of(subject, peer) as client:
        outcome = client.describe(job)
        assert peer.faults == []
        assert [request.elements[3] for request in peer.of_type(frames.DESCRIBE)][-1:] == [job]
        assert not outcome.failed, outcome


@law("P-KEY-1", "P-KEY-2")
def test_what_is_no_key_is_never_sent(subject: ClientSubject) -> None:
    """Nil, booleans, floats, maps, nested arrays, arrays of one and integers beyond 64 bits never occur in a Get."""
    with Peer() as peer, client_of(subject, peer) as client:
        for key in NO_KEYS:
            assert client.get(key).failed, f"the client took {key!r} for a key"
            assert peer.faults == []
        for namespace in NO_KEYS[1:]:
            assert client.get("key", namespace=namespace).failed, f"the client took {namespace!r} for a namespace"
            assert peer.faults == []
        keeps_working(subject, peer, client)


@law("P-MSG-5")
def test_what_is_no_name_is_never_sent(subject: ClientSubject) -> None:
    """A client sends no request for a job or state with an empty name, or one of more than 255 characters."""
    with Peer() as peer, client_of(subject, peer) as client:
        for name in NO_NAMES:
            assert client.get("key", job=name).failed
            assert client.get("key", state=name).failed
            assert client.describe(name).failed
        assert peer.faults == []
        keeps_working(subject, peer, client)


@law("P-FRAME-2", "P-GET-8")
def test_no_frame_is_larger_than_the_welcome_allows(subject: ClientSubject) -> None:
    """A get whose frame would be larger than max_frame is refused by the client, and other requests continue."""
    with Peer(max_frame=4096) as peer, client_of(subject, peer) as client:
        assert client.get("x" * 5000).failed, "a key of 5000 bytes does not fit a frame of 4096"
        assert client.get("key", namespace="x" * 5000).failed
        keeps_working(subject, peer, client)
        assert peer.faults == []


@law("P-FRAME-2")
@examples(0.2)
@given(sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=12))
def test_many_keys_that_fit_no_frame_are_split_or_refused(subject: ClientSubject, sizes: list[int]) -> None:
    """A get of keys that do not fit a frame together becomes several frames, or fails; none is over the limit."""
    needs(subject, "batch")
    wanted = [f"{index}-".ljust(size, "x") for index, size in enumerate(sizes)]
    with Peer(max_frame=4096) as peer, client_of(subject, peer) as client:
        _all_or_too_large(client.get_many(wanted), wanted)
        assert peer.faults == []


@law("P-REQ-4", "P-GET-1")
@examples(0.2)
@given(max_keys=st.integers(1, 10), number=st.integers(1, 40))
def test_more_keys_than_a_get_may_have_are_split_or_refused(subject: ClientSubject, max_keys: int, number: int) -> None:
    """No Get has more keys than max_keys: the client splits them, and puts the results together in order, or fails."""
    needs(subject, "batch")
    wanted = [f"key {index}" for index in range(number)]
    with Peer(max_keys=max_keys) as peer, client_of(subject, peer) as client:
        _all_or_too_large(client.get_many(wanted), wanted)
        assert max(len(get.keys) for get in peer.gets) <= max_keys if peer.gets else number > max_keys
        assert peer.faults == []


@law("P-REQ-1")
def test_ids_in_flight_differ(subject: ClientSubject) -> None:
    """No two requests in flight on a connection have the same id, also when answers are late or never come."""
    needs(subject, "async")
    with Peer() as peer:
        answering_gets(peer, lambda request: [] if request.keys[0] == "silent" else peer.honest(request))
        with client_of(subject, peer) as client:
            silent = [client.start_get("silent", namespace=number, timeout_s=0.3) for number in range(5)]
            answered = [client.start_get(f"key {number}", namespace=number) for number in range(20)]
            assert [waiting.outcome().value for waiting in answered] == [f"key {number}" for number in range(20)]
            assert all(waiting.outcome().failed for waiting in silent)
            assert client.get("last").value == "last"
        assert peer.faults == []


@law("P-MSG-4")
@examples(0.5)
@given(data=st.data())
def test_every_form_of_messagepack_is_read(subject: ClientSubject, data: st.DataObject) -> None:
    """Answers whose integers, strings, arrays and maps are not in the shortest form read the same."""

    def choose(forms: int) -> int:
        return data.draw(st.integers(0, forms - 1), label="form")

    state = state_map()
    # What is drawn is drawn here and not on the peer's threads, which hypothesis does not know.
    answer = frames.message(frames.VALUES, 0, [7], [pack("found", choose)], frames.FINGERPRINT, choose=choose)
    described = frames.message(frames.DESCRIPTION, 0, [state], choose=choose)
    with Peer() as peer, client_of(subject, peer) as client:
        assert client.get("first").value == "first"
        _answer_with(peer, answer, described)
        found, states = client.get("second"), client.describe("job")
    assert found.value == "found", found
    assert [entry.get("name") for entry in states.body.get("states", ())] == ["state"], states


def _answer_with(peer: Peer, values: bytes, description: bytes) -> None:
    """Answer with these frames, in which the id 0 is replaced by the request's, in a form as long as it takes."""
    prepared = {frames.GET: values, frames.DESCRIBE: description}

    def answer(request: Any) -> list[bytes]:
        frame = prepared.get(request.type)
        return list(peer.honest(request)) if frame is None else [_with_id(frame, request.id)]  # type: ignore[arg-type]

    peer.answer = answer


def _with_id(frame: bytes, request_id: int) -> bytes:
    payload = frame[4:]
    start = {0xDC: 3, 0xDD: 5}.get(payload[0], 1)
    start += _length_of_integer(payload[start])
    rest = payload[start + _length_of_integer(payload[start]) :]
    return frames.frame(payload[:start] + b"\xcf" + request_id.to_bytes(8, "big") + rest)


def _length_of_integer(first: int) -> int:
    return {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}.get(first, 1)


def _all_or_too_large(outcome: Outcome, wanted: list[str]) -> None:
    if outcome.failed:
        assert outcome.code in ("TOO_LARGE", "INVALID"), outcome
    else:
        assert [entry.get("value") for entry in outcome.body["results"]] == wanted
