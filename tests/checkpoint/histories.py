"""Random histories of changes, and the state that one makes, found the simplest way."""

from __future__ import annotations

from hypothesis import strategies as st

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.contract import Change, ChangeOp
from qstate.keys import encode_key

__all__ = ["KEYS", "LIST", "MAP", "NAMESPACES", "VALUE", "changes", "histories", "order_of", "plain"]

KEYS = [encode_key(key) for key in ("a", "b", "", 7)]
NAMESPACES = [encode_key(None), encode_key("w")]
MAP_KEYS = [encode_key(key) for key in ("x", "y", 1)]
DATA = st.binary(max_size=3)

#: One state of each shape; the group goes with the key, as it does in a job.
VALUE, LIST, MAP = "value", "list", "märz"


def _change(op: ChangeOp, state: str, place: tuple[bytes, bytes], map_key: bytes, data: bytes) -> Change:
    namespace, key = place
    return Change(op, state, KEYS.index(key), namespace, key, map_key, data)


places = st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(KEYS))
elements = st.lists(DATA, min_size=1, max_size=3).map(pack_elements)
changes = st.one_of(
    st.builds(_change, st.just(ChangeOp.PUT), st.just(VALUE), places, st.just(b""), DATA),
    st.builds(_change, st.just(ChangeOp.PUT), st.just(LIST), places, st.just(b""), elements),
    st.builds(_change, st.just(ChangeOp.LIST_ADD), st.just(LIST), places, st.just(b""), elements),
    st.builds(_change, st.just(ChangeOp.MAP_PUT), st.just(MAP), places, st.sampled_from(MAP_KEYS), DATA),
    st.builds(_change, st.just(ChangeOp.MAP_REMOVE), st.just(MAP), places, st.sampled_from(MAP_KEYS), st.just(b"")),
    st.builds(
        _change, st.just(ChangeOp.DELETE), st.sampled_from([VALUE, LIST, MAP]), places, st.just(b""), st.just(b"")
    ),
)
histories = st.lists(changes, max_size=30)


def plain(history: list[Change]) -> dict[tuple[str, bytes, bytes], object]:
    """What a history makes, the simplest way."""
    state: dict[tuple[str, bytes, bytes], object] = {}
    for op, name, _, namespace, key, map_key, data in history:
        place = (name, namespace, key)
        if op is ChangeOp.PUT:
            state[place] = unpack_elements(data) if name == LIST else data
        elif op is ChangeOp.DELETE:
            state.pop(place, None)
        elif op is ChangeOp.LIST_ADD:
            state[place] = [*state.get(place, []), *unpack_elements(data)]  # type: ignore[misc]
        else:
            entries = dict(state.get(place, {}))  # type: ignore[call-overload]
            entries.pop(map_key, None)
            if op is ChangeOp.MAP_PUT:
                entries[map_key] = data
            state[place] = entries
            if not entries:
                del state[place]
    return state


def order_of(change: Change) -> tuple[object, ...]:
    return change.group, change.state.encode(), change.namespace, change.key, change.map_key
