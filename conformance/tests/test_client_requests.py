"""The judge of clients' requests finds each fault in a faulty one, and none in a sound one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from qstate_conformance.client.requests import Limits, Request, faults_of, read_payload
from qstate_conformance.client.strategies import values
from qstate_conformance.client.tagged import differs, tagged
from qstate_conformance.corpus import corpus
from qstate_conformance.packing import Ext, Pairs, pack

LIMITS = Limits(max_frame=1000, max_keys=3)
STATE = ["job", "state"]


def judged(elements: Any, limits: Limits | None = LIMITS) -> list[str]:
    payload = pack(elements)
    found = read_payload(payload)
    return ["P-MSG-1"] if found is None else faults_of(Request(0.0, 0, payload, found), limits)


def scan(at: int, field: Any) -> list[Any]:
    """A sound Scan, in which one field is another."""
    return _with([13, 1, 9, STATE, [], None, 0, 128, None, b"", {}], at, field)


def poll(at: int, field: Any) -> list[Any]:
    """A sound Poll, in which one field is another."""
    return _with([15, 1, 9, STATE, [], [], None, 0, 128, 0, b"", 0, 4096], at, field)


def _with(message: list[Any], at: int, field: Any) -> list[Any]:
    assert judged(message, Limits(1 << 20, 3)) == []
    return [*message[:at], field, *message[at + 1 :]]


@pytest.mark.parametrize(
    "golden", [entry for entry in corpus()["frames"] if entry["sender"] == "client"], ids=lambda entry: entry["name"]
)
def test_golden_messages_of_clients_have_no_fault(golden: dict[str, Any]) -> None:
    payload = bytes.fromhex(golden["frame"])[4:]
    elements = read_payload(payload)
    assert elements is not None
    limits = None if golden["type"] == "Hello" else Limits(1 << 24, 10_000)
    assert faults_of(Request(0.0, 0, payload, elements), limits) == []


@pytest.mark.parametrize(
    ("elements", "rule"),
    [
        ({"a": 1}, "P-MSG-1"),
        ([2], "P-MSG-1"),
        ([2, -1], "P-MSG-1"),
        ([2, True], "P-MSG-1"),
        ([8, 0], "P-MSG-2"),
        ([0, 5, [1], None, ""], "P-MSG-2"),
        ([8, 1, 1], "P-MSG-3"),
        ([4, 1, 1000, "job"], "P-MSG-3"),
        ([4, 1, 1000, b"job", "state"], "P-MSG-5"),
        ([4, 1, 1000, "", "state"], "P-MSG-5"),
        ([4, 1, 1000, "x" * 256, "state"], "P-MSG-5"),
        ([6, 1, 1000, 5], "P-MSG-5"),
        ([6, 1, 1000.0, None], "P-MSG-6"),
        ([6, 1, True, None], "P-MSG-6"),
        ([0, 0, [1.0], None, ""], "P-MSG-6"),
        ([2, 1, 9, STATE, None, Pairs((("a", 1), ("a", 2))), ["k"]], "P-MSG-7"),
        ([2, 1, 9, STATE, None, {b"a": 1}, ["k"]], "P-MSG-7"),
        ([2, 1, 9, STATE, None, {"a": float("nan")}, ["k"]], "P-MSG-8"),
        ([2, 1, 9, STATE, None, {"a": [1]}, ["k"]], "P-MSG-8"),
        ([2, 1, 9, STATE, None, {"a": Ext(3, b"2013-07-18")}, ["k"]], "P-MSG-9"),
        ([4, 1, 1000, "job", Ext(-1, bytes(4))], "P-MSG-9"),
        ([2, 1, 9, STATE, None, {}, [Ext(5, b"x")]], "P-KEY-6"),
        ([2, 1, 9, STATE, None, {}, [Ext(-1, (1).to_bytes(4, "big") + bytes(8))]], "P-KEY-6"),
        ([2, 1, 9, STATE, None, {}, [("a", Ext(4, b"-0.0"))]], "P-KEY-6"),
        ([2, 1, 9, STATE, Ext(3, b"20130718"), {}, ["k"]], "P-KEY-6"),
        ([2, 1, 9, ["job"], None, {}, ["k"]], "the target"),
        ([2, 1, 9, bytes(15), None, {}, ["k"]], "the state id"),
        ([2, 1, 9, STATE, None, {}, []], "keys are"),
        ([2, 1, 9, STATE, None, {}, ["k"] * 4], "max_keys"),
        ([2, 1, 9, STATE, None, {}, ["x" * 1000]], "P-FRAME-2"),
        ([2, 1, 9, STATE, None, {}, [["k"]]], "P-KEY-1"),
        ([2, 1, 9, STATE, None, {}, [None]], "P-KEY-2"),
        ([2, 1, 9, STATE, None, {}, [1.0]], "P-KEY-2"),
        ([2, 1, 9, STATE, None, {}, [["a", ["b"]]]], "P-KEY-2"),
        ([2, 1, 9, STATE, None, {}, [1 << 63]], "P-KEY-2"),
        ([2, 1, 9, STATE, ["w", None], {}, ["k"]], "P-KEY-2"),
        ([0, 0, [1], "token", ""], "the token"),
        ([0, 0, [], None, ""], "versions"),
        (scan(4, [None, None]), "namespaces are"),
        (scan(4, [[1]]), "P-KEY-1"),
        (scan(5, 5), "the prefix"),
        (scan(5, []), "the prefix"),
        (scan(5, [1.5]), "P-KEY-2"),
        (scan(6, 128), "the key groups"),
        (scan(7, 32769), "the key groups"),
        (scan(8, ["JFK"]), "after is"),
        (scan(8, [None, None]), "P-KEY-2"),
        (scan(9, "view"), "view is"),
        (scan(9, bytes(65)), "view is"),
        (scan(10, {"limit": [1]}), "P-MSG-8"),
        (scan(3, ["job"]), "the target"),
        (poll(5, None), "keys of Poll"),
        (poll(6, 5), "the prefix"),
        ([15, 1, 9, STATE, [], ["k"], "k", 0, 128, 0, b"", 0, 4096], "the prefix"),
        (poll(9, -1), "from_epoch"),
        (poll(10, bytes(65)), "position"),
        (poll(12, 100), "max_bytes"),
        ([9, 1], "type 9"),
    ],
)
def test_a_fault_is_found_and_cites_its_rule(elements: Any, rule: str) -> None:
    found = judged(elements, None if isinstance(elements, list) and elements[0] == 0 else LIMITS)
    assert any(rule in fault for fault in found), found


def test_a_request_before_the_welcome_is_a_fault() -> None:
    assert "P-HELLO-1" in judged([8, 1], None)[0]


@given(value=values)
def test_every_value_survives_the_line_protocol_and_equals_itself(value: Any) -> None:
    assert differs(value, json.loads(json.dumps(tagged(value)))) is None


@pytest.mark.parametrize(
    ("expected", "reported"),
    [
        (1, "1"),
        (1, True),
        (None, False),
        ("a", {"$hex": "61"}),
        (b"a", "a"),
        ((1 << 53) + 1, {"$integer": str(1 << 53)}),
        (1.5, 1),
        (float("nan"), None),
        ([1, 2], [2, 1]),
        ([1], {"$map": [[0, 1]]}),
        ({"a": 1}, {"a": 1}),
        ({"a": 1}, {"$map": [["a", 1], ["a", 1]]}),
        ({"a": 1, "b": 2}, {"$map": [["a", 1], ["b", 3]]}),
        ({1: "a"}, {"$map": [["1", "a"]]}),
        (Ext(5, b"x"), {"$ext": [6, "78"]}),
        (Ext(2, b"2013-01-01T00:00:00"), {"$date": "2013-01-01T00:00:00"}),
        (Ext(4, b"12.50"), {"$decimal": "12.5"}),
        (Ext(-1, bytes(4)), {"$timestamp": [0, 1]}),
    ],
)
def test_different_values_are_found_different(expected: Any, reported: Any) -> None:
    assert differs(expected, reported) is not None
