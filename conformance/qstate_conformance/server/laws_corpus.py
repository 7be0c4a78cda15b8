"""Laws of the golden corpus: what it says of frames holds for this server, and its own reader agrees with it."""

from __future__ import annotations

from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.corpus import corpus, value_of
from qstate_conformance.laws import law
from qstate_conformance.server import messages
from qstate_conformance.server.messages import Failure, Pong, Values, Violation, Welcome, read_message
from qstate_conformance.server.packing import elements_of, pack, unpack
from qstate_conformance.server.probes import check_each, check_untouched, owner_sessions
from qstate_conformance.server.wire import Stream, connect
from qstate_conformance.subjects import ServerSubject

_CLIENT_FRAMES = [item for item in (*corpus()["frames"], *corpus()["accepted"]) if item["sender"] == "client"]
_SERVER_FRAMES = [item for item in (*corpus()["frames"], *corpus()["accepted"]) if item["sender"] == "server"]
_CODES = {
    "Ping": (),
    "Get": (Code.UNKNOWN_JOB, Code.UNKNOWN_STATE_ID, Code.UNSUPPORTED),
    "GetPart": (Code.UNKNOWN_JOB, Code.UNKNOWN_STATE_ID, Code.UNSUPPORTED),
    "Scan": (Code.UNKNOWN_JOB, Code.UNKNOWN_STATE_ID, Code.UNSUPPORTED),
    "Poll": (Code.UNKNOWN_JOB, Code.UNKNOWN_STATE_ID, Code.UNSUPPORTED),
    "Locate": (Code.UNKNOWN_JOB, Code.UNSUPPORTED),
    "Describe": (Code.UNKNOWN_JOB, Code.UNSUPPORTED),
}


def _by_name(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


@law("P-FRAME-1", "P-MSG-1", "P-MSG-3", "P-MSG-4", "P-REQ-2")
def test_the_golden_requests_are_accepted(subject: ServerSubject) -> None:
    """Every request of the corpus has an answer, or fails for its contents, never for its form."""

    def check(item: dict[str, Any]) -> None:
        with connect(subject) as session:
            fields = value_of(item["fields"])
            size = len(fields["keys"]) if item["type"] == "Get" else 0
            session.expect(fields["id"], getattr(messages, _ANSWERS[item["type"]]), size)
            session.send(bytes.fromhex(item["frame"]))
            found = session.answer(fields["id"])
        if isinstance(found, Failure) and found.code not in _CODES[item["type"]]:
            raise Violation(f"P-MSG-3: {found}")

    check_each(_by_name([item for item in _CLIENT_FRAMES if item["type"] in _ANSWERS]), check)


_ANSWERS = {
    "Ping": "Pong",
    "Get": "Values",
    "GetPart": "Part",
    "Scan": "Page",
    "Poll": "Changes",
    "Locate": "Location",
    "Describe": "Description",
}


@law("P-HELLO-2", "P-HELLO-5", "P-HELLO-6")
def test_the_golden_hellos_are_accepted(subject: ServerSubject) -> None:
    """Every Hello of the corpus is sound: it is welcomed, unless the server wants another token."""

    def check(item: dict[str, Any]) -> None:
        token = value_of(item["fields"])["token"]
        with Stream((subject.host, subject.port)) as stream:
            stream.send(bytes.fromhex(item["frame"]))
            if subject.token in (None, token):
                found = stream.receive()
                if not isinstance(found, Welcome):
                    raise Violation(f"P-HELLO-2: {found}")
            else:
                stream.receive_close_notice(Code.UNAUTHENTICATED)

    check_each(_by_name([item for item in _CLIENT_FRAMES if item["type"] == "Hello"]), check)


@law(
    "P-REQ-3",
    "P-REQ-4",
    "P-REQ-9",
    "P-ATTR-1",
    "P-MSG-3",
    "P-MSG-5",
    "P-MSG-6",
    "P-MSG-7",
    "P-MSG-9",
    "P-KEY-1",
    "P-KEY-2",
)
def test_the_bad_requests_of_the_corpus_fail_alone(subject: ServerSubject) -> None:
    """Every bad request of the corpus has its code, at the proxy and at an owner, and the connection stays open."""
    with owner_sessions(subject, "temperature") as owners, connect(subject) as proxy:
        sessions = (proxy, owners[0][1])

        def check(item: dict[str, Any]) -> None:
            for session in sessions:
                session.expect(9, None)
                session.send(bytes.fromhex(item["frame"]))
                found = session.answer(9)
                if not isinstance(found, Failure) or found.code != Code[item["code"]]:
                    raise Violation(f"P-REQ-4: {found} instead of {item['code']}")
                session.ping()

        check_each(_by_name(corpus()["bad_requests"]["frames"]), check)


@law("P-BROKEN-1", "P-BROKEN-3", "P-FAIL-3", "P-FRAME-3", "P-MSG-1", "P-MSG-2")
def test_the_broken_frames_of_the_corpus_end_their_connection(subject: ServerSubject) -> None:
    """Every broken frame of the corpus is a Failure of id 0 with its code, and the end of its connection alone."""

    def check(item: dict[str, Any]) -> None:
        with connect(subject) as session:
            session.send(bytes.fromhex(item["frame"]))
            session.receive_close_notice(Code[item["code"]])

    with connect(subject) as other:
        check_each(_by_name(corpus()["broken"]["frames"]), check)
        check_untouched(subject, other)


@law("P-MSG-3", "P-VERSION-1", "P-VERSION-2")
def test_the_golden_answers_are_readable(subject: ServerSubject) -> None:
    """The suite's own reader, which judges this server, accepts the corpus's answers."""

    def check(item: dict[str, Any]) -> None:
        data = bytes.fromhex(item["frame"])
        assert int.from_bytes(data[:4], "big") == len(data) - 4
        found = read_message(data[4:])
        fields = {name: value_of(value) for name, value in item["fields"].items() if name != "attributes"}
        told = {name: value for name, value in found._asdict().items() if name in fields}
        assert type(found).__name__ == item["type"] and _plain(told) == _plain(fields), f"{found}"

    check_each(_by_name(_SERVER_FRAMES), check)
    with connect(subject) as session:
        assert isinstance(session.exchange(Type.PING), Pong)


def _plain(value: Any) -> Any:
    """Maps as dicts and rows as tuples, so that equal contents are equal."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return tuple(_plain(item) for item in value) if isinstance(value, tuple) else value


@law("P-MSG-4", "P-MSG-1", "P-ATTR-2")
def test_a_server_may_be_understood_byte_for_byte(subject: ServerSubject) -> None:
    """Messages of the server have exactly their elements, in any form."""
    with connect(subject) as session:
        number = session.ask(Type.GET, 10_000, ("conformance", "temperature"), None, {}, ("JFK",))
        payload = session.receive_payload()
    kind, own, epochs, results, _ = (unpack(element) for element in elements_of(payload))
    assert (kind, own) == (Type.VALUES, number) and isinstance(read_message(payload), Values)
    assert len(epochs) == len(results) == 1 and pack(results[0]) == elements_of(elements_of(payload)[3])[0]
