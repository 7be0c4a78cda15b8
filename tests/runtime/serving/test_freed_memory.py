"""Where large pieces of memory go back to the system, nothing that a read or a write of a key needs is such a piece."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from qstate.backends.answers import framed, pack_elements
from qstate.checkpoint.log.operator_state import pack_entry
from qstate.descriptors import ListStateDescriptor
from qstate.keys import encode_key, key_encoder
from qstate.runtime.serving.sharing.freed_memory import give_large_pieces_back
from qstate.serializers import MessagePackSerializer, Serializer

TIMES = 1000


class Text(Serializer):
    """Of another form than MessagePack."""

    name = "text"

    def dumps(self, value: object) -> bytes:
        return repr(value).encode()

    def loads(self, data: bytes) -> object:
        return data.decode()


SERIALIZER = MessagePackSerializer()


def faults(action: Callable[[], object]) -> int:
    """How many pages the system has to give to a thread that repeats the action."""
    action()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(TIMES):
        action()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux counts for each thread")
@pytest.mark.parametrize(
    "action",
    [
        lambda: SERIALIZER.dumps(1.5),
        lambda: SERIALIZER.dumper()(1.5),
        lambda: SERIALIZER.dump_all([1.5]),
        lambda: encode_key(("a", 1)),
        lambda: key_encoder()("a"),
        lambda: pack_elements([b"a"]),
        lambda: framed(ListStateDescriptor("list", int, serializer=Text()), b"a"),
        lambda: pack_entry(b"a", b"b"),
    ],
    ids=["value", "dumper", "values", "key", "keys", "elements", "element", "entry"],
)
def test_writing_messagepack_maps_no_memory(action: Callable[[], object]) -> None:
    give_large_pieces_back()
    with ThreadPoolExecutor(1) as thread:  # the first thread of a process has memory of another kind
        assert thread.submit(faults, action).result() < TIMES / 10
