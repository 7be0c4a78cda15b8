"""The suite's own reader of the protocol accepts what the reference allows, and names each broken rule."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from qstate.keys import key_group
from qstate_conformance.corpus import corpus, value_of
from qstate_conformance.key_groups import group_of, hash_of, xxh64
from qstate_conformance.server import strategies
from qstate_conformance.server.messages import Violation, read_message
from qstate_conformance.server.packing import array_of, elements_of, map_of, pack, pairs_of, unpack
from qstate_conformance.server.patience import Patience
from qstate_conformance.server.unobservable import UNOBSERVABLE

STATE = {
    "name": "s",
    "kind": "value",
    "serializer": "msgpack",
    "serializer_version": 1,
    "fingerprint": "f",
    "key_types": ("string",),
    "namespace_types": None,
    "value_type": "",
    "capabilities": (),
}
OWNER = (0, 4, "host", 1, b"x" * 16)

BROKEN: dict[str, tuple[Any, str]] = {
    "no array": ({}, "P-MSG-1"),
    "a type alone": ((9,), "P-MSG-1"),
    "a boolean as id": ((9, True), "P-MSG-1"),
    "a request": ((8, 1), "P-MSG-1"),
    "an unknown type": ((11, 1), "P-MSG-1"),
    "a welcome with an id": ((1, 1, 1, "", (), 4096, 1), "P-MSG-2"),
    "a welcome with a small frame": ((1, 0, 1, "", (), 4095, 1), "P-FRAME-2"),
    "a welcome of version 0": ((1, 0, 0, "", (), 4096, 1), "P-MSG-6"),
    "a pong with id 0": ((9, 0), "P-MSG-2"),
    "a pong with an element": ((9, 1, 1), "P-MSG-3"),
    "values without results": ((3, 1, (), (), "f"), "P-GET-1"),
    "values with an epoch more": ((3, 1, (1, 1), (None,), "f"), "P-GET-1"),
    "values with text": ((3, 1, (1,), ("text",), "f"), "P-GET-2"),
    "values with a failure and an epoch": ((3, 1, (1,), (5,), "f"), "P-GET-2"),
    "values with the failure 0": ((3, 1, (-1,), (0,), "f"), "P-GET-2"),
    "values with a boolean": ((3, 1, (-1,), (True,), "f"), "P-GET-2"),
    "values without a fingerprint": ((3, 1, (1,), (None,), ""), "P-GET-16"),
    "values with the epoch -2": ((3, 1, (-2,), (None,), "f"), "P-MSG-6"),
    "owners that overlap": ((5, 1, STATE, 8, (OWNER, (3, 5, "host", 1, b"y" * 16))), "P-LOC-1"),
    "owners in another order": ((5, 1, STATE, 8, ((4, 5, "host", 1, b"y" * 16), OWNER)), "P-LOC-1"),
    "an owner of nothing": ((5, 1, STATE, 8, ((4, 4, "host", 1, b"y" * 16),)), "P-LOC-1"),
    "an owner beyond the last group": ((5, 1, STATE, 3, (OWNER,)), "P-LOC-1"),
    "a port of 0": ((5, 1, STATE, 8, ((0, 4, "host", 0, b"x" * 16),)), "P-LOC-1"),
    "a short state id": ((5, 1, STATE, 8, ((0, 4, "host", 1, b"x" * 15),)), "P-LOC-3"),
    "a state without a name": ((7, 1, ({**STATE, "name": None},)), "P-DESC-1"),
    "a state without key types": ((7, 1, ({**STATE, "key_types": "string"},)), "P-DESC-1"),
    "a state with a map": ((7, 1, ({**STATE, "more": {}},)), "P-DESC-1"),
    "a job without a name": ((7, 1, ({"name": "job"},)), "P-DESC-1"),
    "a failure without a code": ((10, 1, 0, {}), "P-MSG-6"),
    "details that are nil": ((10, 1, 1, None), "P-MSG-7"),
    "a detail that is not finite": ((10, 1, 1, {"wait": math.inf}), "P-MSG-8"),
    "a detail of 65 bits": ((10, 1, 1, {"wait": 1 << 63}), "P-MSG-8"),
    "65 details": ((10, 1, 1, {f"{number}": 1 for number in range(65)}), "P-MSG-7"),
    "a detail without a name": ((10, 1, 1, {"": 1}), "P-MSG-7"),
    "an extension type": ((10, 1, 1, {"at": msgpack.ExtType(1, b"")}), "P-MSG-9"),
}


@pytest.mark.parametrize(("payload", "rule"), BROKEN.values(), ids=BROKEN)
def test_a_broken_message_is_refused_by_its_rule(payload: Any, rule: str) -> None:
    with pytest.raises(Violation, match=f"^{rule}:"):
        read_message(pack(payload))


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (b"\x92\x09\x01\x00", "P-MSG-1"),
        (b"\xc1", "P-MSG-1"),
        (b"\x94\x0a\x01\x01\x81\xa1\xff\x01", "P-MSG-5"),
        (b"\x94\x0a\x01\x01\x82\xa1a\x01\xa1a\x01", "P-MSG-7"),
    ],
    ids=["bytes behind", "no MessagePack", "no UTF-8", "a detail twice"],
)
def test_broken_bytes_are_refused_by_their_rule(payload: bytes, rule: str) -> None:
    with pytest.raises(Violation, match=f"^{rule}:"):
        read_message(payload)


def test_what_a_later_server_adds_is_read() -> None:
    assert read_message(pack((1, 0, 1, "", ("scan",), 4096, 1, 7, 0, {"more": 1}))).features == ("scan",)  # type: ignore[union-attr]
    assert read_message(pack((10, 1, 999, {"new": None}))).code == 999  # type: ignore[union-attr]
    assert read_message(pack((7, 1, ({**STATE, "ttl_ms": 5, "more": ("a", 1)},)))).id == 1  # type: ignore[union-attr]


@given(data=st.binary(max_size=100), seed=st.integers(0, (1 << 64) - 1))
def test_the_hash_is_xxh64(data: bytes, seed: int) -> None:
    assert xxh64(data, seed) == xxh64_intdigest(data, seed)


def test_the_hash_is_that_of_the_corpus() -> None:
    for item in corpus()["keys"]:
        key = value_of(item["key"])
        assert f"{hash_of(key):016x}" == item["hash"]
        assert group_of(key, 1000) == item["group_of_1000"] == key_group(key, 1000)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.binary(),
    lambda inner: st.lists(inner, max_size=20).map(tuple) | st.dictionaries(strategies.texts, inner, max_size=20),
    max_leaves=25,
)


@given(data=st.data(), value=VALUES)
def test_any_form_of_a_value_is_the_value(data: st.DataObject, value: Any) -> None:
    assert unpack(data.draw(strategies.in_any_form(value))) == value


@given(values=st.lists(VALUES, max_size=20))
def test_arrays_and_maps_are_cut_where_they_were_joined(values: list[Any]) -> None:
    pieces = [pack(value) for value in values]
    assert elements_of(array_of(pieces)) == pieces and array_of(pieces) == pack(values)
    pairs = list(zip(pieces[::2], pieces[1::2], strict=False))
    assert pairs_of(map_of(pairs)) == pairs
    with pytest.raises(ValueError, match="1 bytes after"):
        elements_of(array_of(pieces) + b"\0")


def test_waits_are_short_after_one_was_in_vain_in_the_same_law(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(full_s=10.0, short_s=0.5, memory_s=100.0)
    assert patience.limit_s == 10.0
    patience.was_lost()
    assert patience.limit_s == 0.5
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "laws_of_something.py::test_another (call)")
    assert patience.limit_s == 10.0
    forgetful = Patience(full_s=10.0, short_s=0.5, memory_s=0.0)
    forgetful.was_lost()
    assert forgetful.limit_s == 10.0


def test_unobservable_rules_have_a_reason() -> None:
    assert all(rule.startswith("P-") and len(reason) > 20 for rule, reason in UNOBSERVABLE.items())
