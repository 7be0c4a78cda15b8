"""Laws of encoding and decoding: no loss, no invalid message, and no other exception."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings

from qstate.errors import FailureCode, LocalProtocolError, RemoteProtocolError
from qstate.protocol.codec import BadContent, decode, encode
from qstate.protocol.limits import (
    HANDSHAKE_MAX_FRAME,
    MAX_FEATURES,
    MAX_KEYS_LIMIT,
    MAX_TOKEN,
    MAX_VERSIONS,
    MIN_MAX_FRAME,
    Limits,
)
from qstate.protocol.messages import (
    FORMS,
    Changes,
    Describe,
    Description,
    Failure,
    Get,
    Hello,
    Locate,
    Location,
    Message,
    Ping,
    Poll,
    Pong,
    Run,
    Scan,
    Values,
    Welcome,
)
from tests.protocol.strategies import almost_payloads, messages

STATE_ID = bytes(range(16))
STATE = {
    "name": "lastTemp",
    "kind": "value",
    "serializer": "msgpack",
    "serializer_version": 1,
    "fingerprint": "f",
    "key_types": ("string",),
    "namespace_types": None,
    "value_type": "float",
    "capabilities": (),
}
GET = Get(7, 1000, ("flights", "lastTemp"), None, {}, ("JFK",))
DAY = date(2020, 12, 31)
TRACED = (
    GET,
    Scan(7, 1000, ("flights", "lastTemp"), (), None, 0, 16, None, b"", {}),
    Poll(7, 1000, ("flights", "lastTemp"), (), ("JFK",), None, 0, 16, 0, b"", 0, 4096),
)


@settings(max_examples=8 * settings.default.max_examples)
@given(messages)
@example(Poll(7, 1000, ("flights", "lastTemp"), (), (), (DAY,), 0, 16, 0, b"", 0, 4096))
@example(Changes(7, "f", 1, 1, b"", 0, (Run(0, 4, DAY, (DAY,), (DAY,), None), Run(0, 2, None, ("a",), None, None))))
def test_decode_returns_the_encoded_message(message: Message) -> None:
    found = decode(encode(message))
    assert found == message
    assert type(found) is type(message)


@settings(max_examples=20 * settings.default.max_examples)
@given(almost_payloads)
@example(b"")
@example(b"\xc1")
@example(b"\x90")
@example(b"\x92\x00\x00")
@example(b"\x96\x02\x07")
@example(b"\x92\xd7\xff" + b"\xff" * 8)
@example(b"\x97\x02\x07\x00\xc4\x10" + bytes(16) + b"\xc0\x80")
@example(b"\x91" * 2000 + b"\x00")
@example(b"\x93\x08\x01\xdd\xff\xff\xff\xff")
@example(b"\x92\xdd\xff\xff\xff\xff\x01")
@example(b"\x92\x08\x81\x90\x01")
@example(b"\x92\xcf\x80" + bytes(7) + b"\x01")
@example(b"\x93\xcf\x80" + bytes(7) + b"\x01\xa1\xff")
def test_decoding_any_bytes_gives_a_message_or_a_protocol_error(payload: bytes) -> None:
    try:
        message = decode(payload)
    except BadContent as error:
        assert 0 < error.request_id < 2**32
        # The server can always send this failure.
        assert decode(encode(Failure(error.request_id, error.code, error.details))).id == error.request_id  # type: ignore[union-attr]
    except RemoteProtocolError as error:
        assert isinstance(error.code, FailureCode)
    else:
        # A decoded message also passes the rules of sending.
        assert decode(encode(message)) == message


BAD_FIELDS: list[tuple[Message, str]] = [
    (GET._replace(id=True), "id"),
    (GET._replace(id=-1), "id"),
    (GET._replace(id=2**32), "id"),
    (GET._replace(deadline_ms=-1), "deadline_ms"),
    (GET._replace(deadline_ms=2**32), "deadline_ms"),
    (GET._replace(deadline_ms=1.5), "deadline_ms"),  # type: ignore[arg-type]
    (GET._replace(target=b"short"), "target"),
    (GET._replace(target=("flights",)), "target"),  # type: ignore[arg-type]
    (GET._replace(target=("flights", "")), "target.state"),
    (GET._replace(target=("j" * 256, "s")), "target.job"),
    (GET._replace(target=None), "target"),  # type: ignore[arg-type]
    (GET._replace(options=None), "options"),  # type: ignore[arg-type]
    (GET._replace(options={1: "x"}), "options"),  # type: ignore[dict-item]
    (GET._replace(options={"isolation": ("live",)}), "options.isolation"),  # type: ignore[dict-item]
    (GET._replace(options={"limit": math.nan}), "options.limit"),
    (GET._replace(options={"limit": math.inf}), "options.limit"),
    (GET._replace(keys=()), "keys"),
    (GET._replace(keys="JFK"), "keys"),  # type: ignore[arg-type]
    (Values(7, (1,), (), "f"), "results"),
    (Values(7, (), (b"x",), "f"), "epochs"),
    (Values(7, (-2,), (b"x",), "f"), "epochs"),
    (Values(7, (True,), (b"x",), "f"), "epochs"),
    (Values(7, (1, True), (b"x", b"y"), "f"), "epochs"),
    (Values(7, (1.0,), (b"x",), "f"), "epochs"),  # type: ignore[arg-type]
    (Values(7, (2**63,), (b"x",), "f"), "epochs"),
    (Values(7, (1,), ("x",), "f"), "results"),  # type: ignore[arg-type]
    (Values(7, (-1,), (True,), "f"), "results"),
    (Values(7, (-1,), (0,), "f"), "results"),
    (Values(7, (-1,), (65536,), "f"), "results"),
    (Values(7, (3,), (5,), "f"), "results"),
    (Locate(7, 0, "", "s"), "job"),
    (Locate(7, 0, "j", 3), "state"),  # type: ignore[arg-type]
    (Describe(7, 0, ""), "job"),
    (Describe(7, -1, None), "deadline_ms"),
    (Location(7, {}, 128, ()), "state.name"),
    (Location(7, {**STATE, "key_types": "string"}, 128, ()), "state.key_types"),
    (Location(7, {**STATE, "value_type": None}, 128, ()), "state.value_type"),
    (Location(7, {**STATE, "more": {}}, 128, ()), "state.more"),
    (Location(7, STATE, 0, ()), "max_parallelism"),
    (Location(7, STATE, 32769, ()), "max_parallelism"),
    (Location(7, STATE, 128, ((0, 128, "h", 1),)), "owners"),  # type: ignore[arg-type]
    (Location(7, STATE, 128, ((0, 129, "h", 1, STATE_ID),)), "owners.stop"),
    (Location(7, STATE, 128, ((5, 5, "h", 1, STATE_ID),)), "owners.stop"),
    (Location(7, STATE, 128, ((0, 9, "h", 1, STATE_ID), (8, 10, "h", 1, STATE_ID))), "owners.start"),
    (Location(7, STATE, 128, ((0, 9, "", 1, STATE_ID),)), "owners.host"),
    (Location(7, STATE, 128, ((0, 9, "h", 0, STATE_ID),)), "owners.port"),
    (Location(7, STATE, 128, ((0, 9, "h", 65536, STATE_ID),)), "owners.port"),
    (Location(7, STATE, 128, ((0, 9, "h", 1, STATE_ID[:15]),)), "owners.state_id"),
    (Description(7, ({},)), "entries.job"),
    (Description(7, ({"job": "j" * 256},)), "entries.job"),
    (Description(7, ("j",)), "entries"),  # type: ignore[arg-type]
    (Failure(7, 0, {}), "code"),
    (Failure(7, 65536, {}), "code"),
    (Failure(7, 1, {"": 1}), "details"),
    (Failure(7, 1, {"n": 2**63}), "details.n"),
]


@pytest.mark.parametrize(("message", "field"), BAD_FIELDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_outside_its_rule_is_refused_both_ways_and_named(message: Any, field: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"field='{field}'"):
        encode(message)
    number = {Get: 2, Values: 3, Locate: 4, Location: 5, Describe: 6, Description: 7, Failure: 10}[type(message)]
    payload = msgpack.packb((number, *message))
    if field == "id":
        with pytest.raises(RemoteProtocolError):
            decode(payload)
    else:
        with pytest.raises(BadContent) as caught:
            decode(payload)
        named = caught.value.details["field"]
        # A map key that MessagePack readers refuse stops the whole message, so no field can be named.
        assert (caught.value.request_id, caught.value.code) == (7, FailureCode.MALFORMED)
        assert named in (field, "message")


@pytest.mark.parametrize(
    "key",
    [None, ("a", None, True), 1.5, math.nan, 2**63, {}, (), ("a",), ("a", None), ("a", ("b", "c")), ("a", 2**63)],
    ids=repr,
)
@pytest.mark.parametrize("others", [(), ("a",), (1,), (("a", 1),), (b"b", 1)], ids=repr)
def test_an_invalid_key_is_a_wrong_key_type_and_named_by_its_index(key: Any, others: tuple[Any, ...]) -> None:
    bad = GET._replace(keys=(*others, key))
    with pytest.raises(LocalProtocolError) as local:
        encode(bad)
    with pytest.raises(BadContent) as remote:
        decode(msgpack.packb((2, *bad)))
    assert local.value.code is remote.value.code is FailureCode.WRONG_KEY_TYPE
    assert remote.value.details["index"] == len(others)


@pytest.mark.parametrize("namespace", [msgpack.ExtType(3, b"today"), 1.0, (), ("a",), {}], ids=repr)
def test_an_invalid_namespace_is_a_wrong_key_type(namespace: Any) -> None:
    with pytest.raises(BadContent) as caught:
        decode(msgpack.packb((2, *GET._replace(namespace=namespace))))
    assert caught.value.code is FailureCode.WRONG_KEY_TYPE
    assert caught.value.details["field"] == "namespace"


def test_a_naive_datetime_and_a_decimal_without_a_value_cannot_be_sent() -> None:
    for key in (datetime(2013, 1, 1), Decimal("NaN"), Decimal("1E+2"), ("a", datetime(2013, 1, 1))):
        with pytest.raises(LocalProtocolError):
            encode(GET._replace(keys=(key,)))


def test_integers_below_64_bits_and_lone_surrogates_cannot_be_sent() -> None:
    for key in (-(2**63) - 1, "\ud800", ("a", "\ud800")):
        with pytest.raises(LocalProtocolError):
            encode(GET._replace(keys=(key,)))


@pytest.mark.parametrize("options", [{"colour": 5}, {"isolation": "snapshot"}, {"isolation": True}], ids=repr)
def test_an_unknown_option_or_value_is_unsupported(options: dict[str, Any]) -> None:
    with pytest.raises(BadContent) as caught:
        decode(msgpack.packb((2, *GET._replace(options=options))))
    assert caught.value.code is FailureCode.UNSUPPORTED
    assert caught.value.details["option"] == next(iter(options))


@pytest.mark.parametrize("name", ["min_epoch", "max_staleness_ms"])
@pytest.mark.parametrize("value", [-1, True, 1.0, "1", None, 1 << 63], ids=repr)
def test_a_demand_other_than_an_integer_from_0_is_malformed(name: str, value: Any) -> None:
    with pytest.raises(BadContent) as caught:
        decode(msgpack.packb((2, *GET._replace(options={name: value}))))
    assert caught.value.code is FailureCode.MALFORMED
    assert caught.value.details["field"] == f"options.{name}"


def test_an_unknown_type_is_unsupported_even_when_its_fields_cannot_be_read() -> None:
    for payload in (msgpack.packb((11, 7)), b"\x93\x0b\x07\xa1\xff"):
        with pytest.raises(BadContent) as caught:
            decode(payload)
        assert (caught.value.request_id, caught.value.code) == (7, FailureCode.UNSUPPORTED)
        assert caught.value.details == {"type": 11}


@pytest.mark.parametrize(
    "payload",
    [
        b"\x97\x02\x07\x00\xc4\x10" + STATE_ID + b"\xc0\x80\x91\xa1\xff",
        b"\x97\x02\x07\x00\xc4\x10" + STATE_ID + b"\xc0\x82\xa1a\x01\xa1a\x02\x91\x01",
        b"\x97\x02\x07\x00\xc4\x10" + STATE_ID + b"\xc0\x81\x90\x02\x91\x01",
        msgpack.packb((2, *GET._replace(namespace=msgpack.ExtType(1, b"\x90")))),
        msgpack.packb((2, *GET._replace(namespace=msgpack.Timestamp(1, 1)))),
        msgpack.packb((2, *GET[:-1], "more")),
        msgpack.packb((2, *GET[:-2])),
        msgpack.packb((2, 7)),
    ],
    ids=["not UTF-8", "duplicate map key", "array as map key", "ext", "timestamp", "too long", "too short", "empty"],
)
def test_an_invalid_value_in_a_valid_frame_names_its_request(payload: bytes) -> None:
    with pytest.raises(BadContent) as caught:
        decode(payload)
    assert caught.value.request_id == 7
    assert caught.value.code in (FailureCode.MALFORMED, FailureCode.WRONG_KEY_TYPE)


@pytest.mark.parametrize("surplus", [1, 50])
def test_too_many_keys_are_too_large_and_the_failure_names_the_limit(surplus: int) -> None:
    limits = Limits(max_keys=100)
    get = GET._replace(keys=tuple(range(100)))
    assert decode(encode(get, limits), limits) == get
    more = GET._replace(keys=tuple(range(100 + surplus)))
    with pytest.raises(LocalProtocolError) as local:
        encode(more, limits)
    with pytest.raises(BadContent) as remote:
        decode(msgpack.packb((2, *more)), limits)
    assert local.value.code is remote.value.code is FailureCode.TOO_LARGE
    assert remote.value.details == {"field": "keys", "limit": 100}


def test_a_payload_over_the_frame_limit_is_not_encoded() -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(Values(7, (1,), (b"x" * 4096,), "f"), Limits(max_frame=4096))
    assert caught.value.code is FailureCode.TOO_LARGE


@pytest.mark.parametrize(
    "payload",
    [
        msgpack.packb((2, 0, *GET[1:])),
        msgpack.packb((8, 0)),
        msgpack.packb((8, -1)),
        msgpack.packb((8, 2**32)),
        msgpack.packb((8, "7")),
        msgpack.packb((-1, 7)),
        msgpack.packb((2**32, 7)),
        msgpack.packb((True, 7)),
        msgpack.packb({8: 7}),
        msgpack.packb((8,)),
        msgpack.packb((8, 7)) + b"\xc0",
        msgpack.packb((8, 7))[:-1],
    ],
    ids=repr,
)
def test_without_one_array_of_type_and_id_the_frame_is_broken(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(payload)
    assert not isinstance(caught.value, BadContent)


def test_the_handshake_ignores_fields_that_a_newer_peer_appends() -> None:
    hello, welcome = Hello((1, 2), None, "new", ("zip",), 5000), Welcome(1, "s", (), 4096, 1, 7, 60_000)
    for more in ((), ({"more": 1},), ("more", 2, None)):
        assert decode(msgpack.packb((0, 0, *hello, *more))) == hello
        assert decode(msgpack.packb((1, 0, *welcome, *more))) == welcome


@pytest.mark.parametrize("left_out", [1, 2])
def test_the_last_elements_of_the_handshake_may_be_left_out(left_out: int) -> None:
    hello, welcome = Hello((1, 2), None, "old"), Welcome(1, "s", (), 4096, 1)
    assert decode(msgpack.packb((0, 0, *hello[:-left_out]))) == hello
    assert decode(msgpack.packb((1, 0, *welcome[:-left_out]))) == welcome
    with pytest.raises(RemoteProtocolError):
        decode(msgpack.packb((0, 0, *hello[:2])))


@pytest.mark.parametrize("value", ["00-" + "a" * 32 + "-" + "b" * 16 + "-01", "short", "x" * 56, 5, None, b"b" * 55])
@pytest.mark.parametrize("request_", TRACED, ids=lambda request: type(request).__name__)
def test_a_request_keeps_the_span_that_it_is_sent_for_and_nothing_that_cannot_be_one(request_: Any, value: Any) -> None:
    number = {Get: 2, Scan: 13, Poll: 15}[type(request_)]
    try:
        found = decode(msgpack.packb((number, *request_[:-1], {"?traceparent": value, "?color": 1})))
    except BadContent as exc:  # bytes are no scalar
        assert type(value) is bytes and exc.code is FailureCode.MALFORMED
        return
    assert found == request_._replace(attributes={"?traceparent": value} if len(str(value)) == 55 else {})
    assert decode(encode(found)) == found
    assert encode(request_) == encode(found) or found.attributes


@pytest.mark.parametrize("message", [GET, Ping(7), Pong(7), Failure(7, 8, {}), Values(7, (1,), (b"x",), "f")])
def test_attributes_that_may_be_ignored_are(message: Any) -> None:
    number = next(form.number for form in FORMS if form.message is type(message))
    fields = message[:-1] if type(message) is Get else message
    for attributes in ({}, {"?color": "red", "?": None}):
        assert decode(msgpack.packb((number, *fields, attributes))) == message
    for attributes, code in (
        ({"color": 1}, FailureCode.UNSUPPORTED),
        ({"?color": 1, "color": 1}, FailureCode.UNSUPPORTED),
        ({"?color": [1]}, FailureCode.MALFORMED),
        ({"?" * 256: 1}, FailureCode.MALFORMED),
        ({f"?{number}": 1 for number in range(65)}, FailureCode.MALFORMED),
        ([], FailureCode.MALFORMED),
        (None, FailureCode.MALFORMED),
    ):
        with pytest.raises(BadContent) as caught:
            decode(msgpack.packb((number, *fields, attributes)))
        assert caught.value.code is code, attributes
    with pytest.raises(BadContent):
        decode(msgpack.packb((number, *message, {}, {})))


def test_options_that_may_be_ignored_are() -> None:
    asked = GET._replace(options={"?hint": 5, "min_epoch": 3})
    assert decode(msgpack.packb((2, *asked))) == GET._replace(options={"min_epoch": 3})


def test_numbers_in_a_longer_form_than_needed_are_read() -> None:
    assert decode(b"\xdd\x00\x00\x00\x02\xcd\x00\x08\xce\x00\x00\x00\x07") == Ping(7)


@pytest.mark.parametrize("header", [b"\xdc\x03\xe8", b"\xdd\x7f\xff\xff\xff"])
def test_nested_array_headers_do_not_make_the_decoder_allocate_without_bound(header: bytes) -> None:
    limits = Limits(max_keys=1000)
    tracemalloc.start()
    try:
        for start in (b"\x93\x08\x07", b"\x93", b"\x93\x08"):
            with pytest.raises(RemoteProtocolError):
                decode(start + header * 1000 + bytes(1000), limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1000 * 16


def test_the_python_form_of_msgpack_gives_the_same_answers() -> None:
    """Without its compiled form msgpack calls its hooks in another way."""
    root = Path(__file__).parents[2]
    check = (
        "import msgpack\n"
        "from qstate.protocol.codec import BadContent, decode, encode\n"
        "from qstate.protocol.messages import Get\n"
        "assert msgpack.Packer.__module__ == 'msgpack.fallback'\n"
        "get = Get(7, 1, ('j', 's'), None, {'isolation': 'live'}, ('a', 1, ('b', b'c')))\n"
        "assert decode(encode(get)) == get\n"
        "for fields in (b'\\x82\\xa1a\\x01\\xa1a\\x02', b'\\xc7\\x00\\x05', b'\\xa1\\xff', b'\\x81\\x01\\x01'):\n"
        "    try: decode(b'\\x93\\x08\\x07' + fields)\n"
        "    except BadContent as error: assert error.request_id == 7\n"
        "    else: raise SystemExit(fields)\n"
    )
    environment = {**os.environ, "MSGPACK_PUREPYTHON": "1"}
    subprocess.run([sys.executable, "-c", check], check=True, cwd=root, env=environment, timeout=30)


def test_the_longest_hello_and_welcome_fit_before_the_handshake_is_done() -> None:
    name = "\U0001f600" * 255
    features = (name,) * MAX_FEATURES
    longest_hello = Hello(tuple([65535] * MAX_VERSIONS), bytes(MAX_TOKEN), name, features, 2**28 - 1)
    longest_welcome = Welcome(65535, name, features, 2**28 - 1, MAX_KEYS_LIMIT, 2**32 - 1, 2**32 - 1)
    for message in (longest_hello, longest_welcome):
        assert len(encode(message)) <= HANDSHAKE_MAX_FRAME


def test_every_failure_with_names_in_its_details_fits_the_smallest_frame() -> None:
    name = "\U0001f600" * 255
    with pytest.raises(BadContent) as caught:
        decode(msgpack.packb((2, *GET._replace(options={name: 1}))))
    assert encode(Failure(7, caught.value.code, caught.value.details), Limits(max_frame=MIN_MAX_FRAME))
