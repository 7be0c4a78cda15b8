"""Direct routing: which owner is asked for a key, and what a client does when the owners move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Client
from qstate_conformance.client.frames import CODES, FATAL_ANSWERS, GET, LOCATE, LOOK_UP_AGAIN
from qstate_conformance.client.peer import CLOSE, Peer, Reply, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import (
    are_answered_again,
    assert_growing,
    client_of,
    connection,
    fall_silent,
    has_left,
    needs,
    refuses_gets,
)
from qstate_conformance.client.strategies import bigints, texts
from qstate_conformance.corpus import corpus, value_of
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.packing import column_extension
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

OLD_ID, NEW_ID = bytes([1] * 16), bytes([2] * 16)
#: Columns by the name of their type.
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "binary": st.binary(max_size=20),
    "bigint": bigints,
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(timezone.utc)),
    "decimal(38,2)": st.integers(1 - 10**38, 10**38 - 1).map(lambda cents: Decimal(f"{cents}E-2")),
}
#: The state id of the owner that has this number.
IDS = [bytes([number] * 16) for number in range(10, 20)]


def _locating(proxy: Peer, owners: Callable[[int], Sequence[Any]], max_parallelism: int = 128) -> None:
    """Have the proxy answer Locates, numbered from 0, with these owners, and Gets not at all."""
    state = proxy.states["state"]

    def answer(request: Request) -> Iterable[object]:
        if request.type == GET:
            return []
        if request.type != LOCATE:
            return proxy.explain(request)
        found = owners(len(proxy.of_type(LOCATE)) - 1)
        return [frames.location(request.id, state, list(found), max_parallelism)]

    proxy.answer = answer


def _locating_one(proxy: Peer, owner: Any, max_parallelism: int = 128) -> None:
    _locating(proxy, lambda _: [owner], max_parallelism)


@contextmanager
def _direct(subject: ClientSubject, proxy: Peer, **options: Any) -> Iterator[Client]:
    with client_of(subject, proxy, direct=True, **options) as client:
        yield client


@st.composite
def _keys_of_one_type(draw: st.DrawFn) -> tuple[list[str], list[Any]]:
    types = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    columns = [COLUMNS[name] for name in types]
    key = columns[0] if len(columns) == 1 else st.tuples(*columns)
    return types, draw(st.lists(key, min_size=1, max_size=8, unique=True))


@law("P-KEY-3", "P-KEY-4", "P-KEY-5", "P-LOC-3", "P-ROUTE-1")
@examples(0.3)
@given(typed=_keys_of_one_type(), max_parallelism=st.sampled_from([3, 128, 1000, 32768]), share=st.floats(0.1, 0.9))
def test_each_key_is_asked_of_the_owner_of_its_group(
    subject: ClientSubject, typed: tuple[list[str], list[Any]], max_parallelism: int, share: float
) -> None:
    """A client asks for each key, of any type and columns, at the owner of its key group, by the owner's state id."""
    needs(subject, "direct")
    types, wanted = typed
    cut = max(1, min(max_parallelism - 1, round(max_parallelism * share)))
    ranges = [(0, cut), (cut, max_parallelism)]
    with ExitStack() as stack:
        proxy = stack.enter_context(Peer(states=[state_map(key_types=types)]))
        peers = [stack.enter_context(Peer()) for _ in ranges]
        owners = [
            peer.owner(start, stop, IDS[index])
            for index, (peer, (start, stop)) in enumerate(zip(peers, ranges, strict=True))
        ]
        _locating(proxy, lambda _: owners, max_parallelism)
        with _direct(subject, proxy) as client:
            for key in wanted:
                outcome = client.get(key)
                assert outcome.found, f"{key!r} of the group {group_of(key, max_parallelism)} gives {outcome}"
        for index, (peer, (start, stop)) in enumerate(zip(peers, ranges, strict=True)):
            expected = [_sent(key) for key in wanted if start <= group_of(key, max_parallelism) < stop]
            assert [key for get in peer.gets for key in get.keys] == expected
            assert {get.target for get in peer.gets} <= {IDS[index]}
            assert peer.faults == []


@law("P-KEY-3", "P-KEY-4")
def test_the_golden_keys_have_their_groups(subject: ClientSubject) -> None:
    """A client asks for every key of the golden corpus at the owner of its golden key group only."""
    needs(subject, "direct")
    for entry in corpus()["keys"]:
        key = value_of(entry["key"])
        types = [_type_of(column) for column in (key if isinstance(key, tuple) else (key,))]
        for max_parallelism in (128, 1000):
            group = entry[f"group_of_{max_parallelism}"]
            with Peer(states=[state_map(key_types=types)]) as proxy, Peer() as owner:
                _locating_one(proxy, owner.owner(group, group + 1), max_parallelism)
                with _direct(subject, proxy) as client:
                    outcome = client.get(key, timeout_s=2.0)
            assert outcome.found, f"{entry['key']!r} is not looked for in group {group} of {max_parallelism}: {outcome}"


def _sent(key: Any) -> Any:
    """A key as a peer reads it."""
    if isinstance(key, tuple):
        return tuple(map(_sent, key))
    return column_extension(key) if isinstance(key, date | Decimal) else key


def _type_of(column: Any) -> str:
    if isinstance(column, Decimal):
        return f"decimal(38,{-int(column.as_tuple().exponent)})"
    kinds = {str: "string", bytes: "binary", int: "bigint", bool: "boolean", date: "date", datetime: "timestamp"}
    return kinds[type(column)]


@law("P-ROUTE-1", "P-GET-1")
@examples(0.2)
@given(number=st.integers(1, 40))
def test_the_results_of_several_owners_are_put_in_the_order_of_the_keys(subject: ClientSubject, number: int) -> None:
    """A get of many keys asks each owner for its own keys, and returns each key's own result."""
    needs(subject, "direct", "batch")
    wanted = [f"key {index}" for index in range(number)]
    with Peer() as proxy, Peer() as left, Peer() as right:
        _locating(proxy, lambda _: [left.owner(0, 50, IDS[0]), right.owner(50, 128, IDS[1])])
        with _direct(subject, proxy) as client:
            outcome = client.get_many(wanted)
        assert not outcome.failed, outcome
        assert [entry.get("value") for entry in outcome.body["results"]] == wanted
        assert all(group_of(key, 128) < 50 for get in left.gets for key in get.keys)
        assert all(group_of(key, 128) >= 50 for get in right.gets for key in get.keys)


@law("P-HELLO-1", "P-HELLO-2")
def test_an_owner_is_greeted_like_a_proxy(subject: ClientSubject) -> None:
    """The connection to an owner has a handshake of its own, the token included."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as owner:
        _locating(proxy, lambda _: [owner.owner()])
        with _direct(subject, proxy, token=b"open sesame") as client:
            assert client.get("key").value == "key"
        hello = connection(owner).hello
        assert hello is not None
        assert hello.elements[3] == b"open sesame"
        assert owner.faults == proxy.faults == []


@law("P-ROUTE-2")
def test_the_location_is_kept_until_an_owner_says_otherwise(subject: ClientSubject) -> None:
    """Gets that follow one another need one Locate; so do those of keys without a value, and fatal failures."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as owner:
        _locating(proxy, lambda _: [owner.owner()])
        with _direct(subject, proxy) as client:
            for number in range(10):
                assert client.get(f"key {number}").value == f"key {number}"
            refuses_gets(owner, lambda request: frames.values(request.id, [None]))
            assert not client.get("none").failed
            refuses_gets(owner, lambda request: frames.failure(request.id, CODES["FORBIDDEN"]))
            assert client.get("forbidden").code == "FORBIDDEN"
        assert len(proxy.of_type(LOCATE)) == 1, f"12 gets took {len(proxy.of_type(LOCATE))} Locates"
        assert len(owner.gets) == 12


@law("P-RETRY-1", "P-FAIL-1")
def test_a_fatal_code_of_an_owner_is_the_outcome(subject: ClientSubject) -> None:
    """An owner's fatal code is the outcome: the client neither asks the owner again nor looks up a location."""
    needs(subject, "direct")
    for name, code in FATAL_ANSWERS.items():
        with Peer() as proxy, Peer() as owner:
            _locating_one(proxy, owner.owner())
            refuses_gets(owner, partial(_refusal, code))
            with _direct(subject, proxy) as client:
                assert client.get("key").code == name
                assert not client.describe().failed
            assert (len(owner.gets), len(proxy.of_type(LOCATE))) == (1, 1)


@law("P-ROUTE-1", "P-LOC-3")
def test_a_state_that_moved_is_looked_up_again(subject: ClientSubject) -> None:
    """After a code with the retry answer `look up again`, the client Locates again and asks the new owner."""
    needs(subject, "direct")
    for name, code in LOOK_UP_AGAIN.items():
        _moves(subject, name, partial(_refusal, code))
        _moves(subject, f"{name} of the key", partial(_refusal_of_the_key, code))


@law("P-RETRY-5", "P-ROUTE-1")
def test_a_get_under_which_its_owner_dies_goes_to_no_other_owner(subject: ClientSubject) -> None:
    """A Get whose owner closes the connection is UNAVAILABLE; the next one goes to the current owner."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as new:
        with Peer(lambda request: [CLOSE]) as old:
            _locating(proxy, lambda number: [new.owner(state_id=NEW_ID) if number else old.owner(state_id=OLD_ID)])
            with _direct(subject, proxy) as client:
                outcome = client.get("poison", timeout_s=2.0)
                assert outcome.code == "UNAVAILABLE", outcome
                assert (len(old.gets), len(new.gets)) == (1, 0), "a Get that its owner died under was sent again"
                old.close()
                assert client.get("key").value == "key"
        assert [get.keys for get in new.gets] == [("key",)]


@law("P-ROUTE-1", "P-LOC-2")
def test_an_owner_that_is_gone_is_looked_up_again(subject: ClientSubject) -> None:
    """When an owner cannot be reached, the client Locates again and asks the new owner."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as new:
        # Closed last, so that neither of the others has its port.
        with Peer() as gone:
            unreachable = gone.owner(state_id=OLD_ID)
        _locating(proxy, lambda number: [new.owner(state_id=NEW_ID) if number else unreachable])
        with _direct(subject, proxy) as client:
            assert client.get("key").value == "key"
        assert {get.target for get in new.gets} == {NEW_ID}


@law("P-DEADLINE-5", "P-DEADLINE-4", "P-ROUTE-1")
def test_a_dead_connection_to_an_owner_is_given_up(subject: ClientSubject) -> None:
    """A client gives up a silent connection to an owner, and later requests have a new one."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as owner:
        _locating_one(proxy, owner.owner())
        with _direct(subject, proxy) as client:
            assert client.get("before").value == "before"
            fall_silent(owner)
            are_answered_again(subject, (proxy, client))
            assert has_left(owner, connection(owner)), "the client keeps the dead connection open"


def _refusal(code: int, request: Request) -> bytes:
    return frames.failure(request.id, code)


def _refusal_of_the_key(code: int, request: Request) -> bytes:
    return frames.values(request.id, [code])


def _moves(subject: ClientSubject, name: str, refusal: Callable[[Request], Reply]) -> None:
    with Peer() as proxy, Peer(lambda request: [refusal(request)]) as old, Peer() as new:
        _locating(proxy, lambda number: [new.owner(state_id=NEW_ID) if number else old.owner(state_id=OLD_ID)])
        with _direct(subject, proxy) as client:
            outcome = client.get("key", timeout_s=2.0)
        assert outcome.value == "key", f"after {name} the get gives {outcome}"
        assert len(proxy.of_type(LOCATE)) == 2, f"after {name}"
        assert ({get.target for get in old.gets}, {get.target for get in new.gets}) == ({OLD_ID}, {NEW_ID})


@law("P-ROUTE-1", "P-RETRY-2", "P-RETRY-1")
def test_the_waits_before_locating_again_grow(subject: ClientSubject) -> None:
    """While owners answer that they do not hold the state, each Locate comes after a longer wait."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as owner:
        _locating(proxy, lambda _: [owner.owner()])
        refuses_gets(owner, lambda request: frames.failure(request.id, CODES["UNKNOWN_STATE_ID"]))
        with _direct(subject, proxy) as client:
            assert client.get("key", timeout_s=1.0).code in ("UNKNOWN_STATE_ID", "DEADLINE_EXCEEDED")
        locates = proxy.of_type(LOCATE)
        assert len(locates) > 1, "the client never located again"
        assert_growing([request.at for request in locates])


@law("P-LOC-2", "P-ROUTE-1")
def test_a_key_without_an_owner_is_looked_for_again_later(subject: ClientSubject) -> None:
    """A key in a gap of the Location is asked of the owner that a later Location names; no other is asked for it."""
    needs(subject, "direct")
    group = group_of("key", 128)
    with Peer() as proxy, Peer() as other, Peer() as owner:
        around = [other.owner(start, stop, OLD_ID) for start, stop in ((0, group), (group + 1, 128)) if start < stop]
        own = owner.owner(group, group + 1, NEW_ID)
        _locating(proxy, lambda number: sorted([*around, own]) if number >= 2 else around)
        with _direct(subject, proxy) as client:
            assert client.get("key").value == "key"
        assert other.gets == []


@law("P-LOC-2", "P-RETRY-1")
def test_a_key_that_never_has_an_owner_fails_by_the_deadline(subject: ClientSubject) -> None:
    """A key that stays in a gap ends as UNKNOWN_KEY_GROUP_LOCATION, by the deadline, after more than one look."""
    needs(subject, "direct")
    with Peer() as proxy:
        _locating(proxy, lambda _: [])
        with _direct(subject, proxy, timeout_s=0.3) as client:
            outcome = client.get("key", timeout_s=0.3)
        assert outcome.code in ("UNKNOWN_KEY_GROUP_LOCATION", "DEADLINE_EXCEEDED"), outcome
        assert len(proxy.of_type(LOCATE)) > 1


@law("P-BROKEN-2", "P-LOC-1", "P-MSG-3")
def test_a_location_that_breaks_its_table_ends_the_connection(subject: ClientSubject) -> None:
    """After a Location whose owners overlap, are out of order or invalid, the client closes and asks none of them."""
    needs(subject, "direct")
    with Peer() as owner:
        for name, (max_parallelism, owners) in _wrong_locations(owner).items():
            with Peer() as proxy:
                _locating(proxy, partial(_same, owners), max_parallelism)
                with _direct(subject, proxy, timeout_s=0.1) as client:
                    assert client.get("key", timeout_s=0.1).failed, f"{name} is taken"
                    assert has_left(proxy, connection(proxy, proxy.of_type(LOCATE)[0].connection)), name
        assert owner.connections == []


def _same(owners: Sequence[Any], number: int) -> Sequence[Any]:
    return owners


def _wrong_locations(owner: Peer) -> dict[str, tuple[int, list[Any]]]:
    start, stop, host, port, state_id = owner.owner()
    return {
        "owners that overlap": (128, [owner.owner(0, 65), owner.owner(64, 128)]),
        "owners in descending order": (128, [owner.owner(64, 128), owner.owner(0, 64)]),
        "an owner of nothing": (128, [owner.owner(5, 5), owner.owner(6, 128)]),
        "an owner of more than there is": (128, [owner.owner(0, 129)]),
        "an owner before the first group": (128, [owner.owner(-1, 128)]),
        "no groups at all": (0, [owner.owner()]),
        "more groups than there may be": (32769, [owner.owner()]),
        "the port 0": (128, [(start, stop, host, 0, state_id)]),
        "a port of more than 16 bits": (128, [(start, stop, host, 65536, state_id)]),
        "a port that is text": (128, [(start, stop, host, str(port), state_id)]),
        "a host without a name": (128, [(start, stop, "", port, state_id)]),
        "a state id of 15 bytes": (128, [(start, stop, host, port, bytes(15))]),
        "a state id that is text": (128, [(start, stop, host, port, "x" * 16)]),
        "an owner of four elements": (128, [(start, stop, host, port)]),
        "an owner that is nil": (128, [None]),
    }


@law("P-BROKEN-3", "P-BROKEN-2", "P-ROUTE-1")
def test_an_owner_that_breaks_the_protocol_harms_no_other(subject: ClientSubject) -> None:
    """While one owner breaks the protocol, the keys of the others are answered, on the connections that they have."""
    needs(subject, "direct")
    keys = [f"key {number}" for number in range(20)]
    with Peer() as proxy, Peer() as good, Peer() as bad:
        refuses_gets(bad, lambda request: frames.frame(b"\xc1"))
        _locating(proxy, lambda _: [good.owner(0, 64, IDS[0]), bad.owner(64, 128, IDS[1])])
        with _direct(subject, proxy) as client:
            for key in keys:
                outcome = client.get(key, timeout_s=0.05 if group_of(key, 128) >= 64 else 5.0)
                assert outcome.failed if group_of(key, 128) >= 64 else outcome.value == key
        assert len(good.connections) == 1
