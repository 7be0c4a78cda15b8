"""Operator state on disk: with the epoch it belongs to, and to one owner each when the parallelism changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.log.operator_state import (
    DeclaredLists,
    Distribution,
    OperatorList,
    OperatorState,
    operator_state_of,
    operator_states_of,
    pack_entry,
    redistributed,
    states_fact,
    unpack_entry,
)
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.sources.history import OutrunCheckpoint
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import Savepoint, write_savepoint
from qstate.checkpoint.sources.verification import verify
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor
from qstate.errors import CheckpointError, JobError
from qstate.evolution import StateSchema
from qstate.keys import encode_key
from qstate.serializers import Serializer
from tests.checkpoint.checkpoints import UID, StoredJob

SPLIT, UNION, BROADCAST = Distribution


def schema_of(name: str, kind: type = bytes) -> dict[str, object]:
    return StateSchema.of(ListStateDescriptor(name, kind)).to_plain()


def split(name: str, *elements: bytes, kind: type = bytes) -> OperatorList:
    return OperatorList(schema_of(name, kind), SPLIT, elements)


def union(name: str, *elements: bytes) -> OperatorList:
    return OperatorList(schema_of(name), UNION, elements)


def of_all(states: list[OperatorState], parallelism: int) -> list[OperatorState]:
    return [redistributed(states, parallelism, subtask) for subtask in range(parallelism)]


def elements(state: OperatorState, name: str) -> list[bytes]:
    return [element for one in state if one.name == name for element in one.elements]


def test_odd_elements_of_the_next_list_go_to_those_that_got_none_of_the_last() -> None:
    """What Flink's RoundRobinOperatorStateRepartitioner does, worked out by hand."""
    states = [(split("a", b"1", b"2", b"3"), split("b", b"x", b"y")), (split("a", b"4"), split("b", b"z", b"w", b"v"))]
    found = of_all(states, 3)
    assert [elements(state, "a") for state in found] == [[b"1", b"2"], [b"3"], [b"4"]]
    # One of "a" too many went to subtask 0, so "b" begins with subtask 1, and subtask 0 comes last.
    assert [elements(state, "b") for state in found] == [[b"v"], [b"x", b"y"], [b"z", b"w"]]


def test_unchanged_parallelism_leaves_split_lists_where_they_are() -> None:
    states = [(split("a", b"1", b"2", b"3"),), ()]
    assert [elements(state, "a") for state in of_all(states, 2)] == [[b"1", b"2", b"3"], []]


def test_lists_in_two_forms_stay_apart_and_in_order() -> None:
    states = [(split("a", b"1", b"2"),), (split("a", b"3", b"4", kind=str),)]
    (found,) = of_all(states, 1)
    forms = [(one.schema["value_type"], one.elements) for one in found]
    assert forms == [("bytes", (b"1", b"2")), ("str", (b"3", b"4"))]
    assert [one.schema["value_type"] for one in redistributed(states, 4, 3)] == ["str"]


def test_list_without_elements_is_still_somebodys() -> None:
    for state in of_all([(split("a"),), (split("a"), union("u"))], 5):
        assert [(one.name, one.elements) for one in state] == [("a", ()), ("u", ())]


names = st.sampled_from(["a", "b", "c"])
states_of_subtasks = st.lists(
    st.dictionaries(names, st.lists(st.binary(max_size=2), max_size=7), max_size=3), min_size=1, max_size=6
)


@given(states_of_subtasks, st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_nothing_is_lost_and_nothing_is_there_twice(
    before: list[dict[str, list[bytes]]], parallelisms: list[int]
) -> None:
    states: list[OperatorState] = [tuple(split(name, *found) for name, found in one.items()) for one in before]
    wanted = {name: Counter(element for one in before for element in one.get(name, ())) for name in "abc"}
    for parallelism in parallelisms:
        changed = parallelism != len(states)
        states = of_all(states, parallelism)
        for name in "abc":
            shares = [elements(state, name) for state in states]
            assert Counter(element for share in shares for element in share) == wanted[name]
            assert not changed or max(map(len, shares)) - min(map(len, shares)) <= 1
        totals = [sum(len(one.elements) for one in state) for state in states]
        assert not changed or max(totals) - min(totals) <= 1, "odd elements are spread over the names"


@given(states_of_subtasks, st.integers(1, 7))
def test_everybody_gets_all_of_a_union_list(before: list[dict[str, list[bytes]]], parallelism: int) -> None:
    states: list[OperatorState] = [tuple(union(name, *found) for name, found in one.items()) for one in before]
    for name in "abc":
        wanted = [element for one in before for element in one.get(name, ())]
        assert all(elements(state, name) == wanted for state in of_all(states, parallelism))


@given(st.dictionaries(names, st.binary(max_size=3)), st.integers(1, 5), st.lists(st.integers(1, 7), max_size=4))
def test_everybody_has_each_entry_of_a_broadcast_state_once(
    entries: dict[str, bytes], parallelism: int, later: list[int]
) -> None:
    packed = tuple(pack_entry(encode_key(key), data) for key, data in entries.items())
    state = (OperatorList(StateSchema.of(MapStateDescriptor("m", bytes)).to_plain(), BROADCAST, packed),)
    states: list[OperatorState] = [state] * parallelism
    for wanted in later:
        saved = operator_states_of(states_fact(states), "the savepoint")
        assert saved == [state] + [()] * (len(states) - 1), "a savepoint has it once"
        assert of_all(saved, wanted) == of_all(states, wanted) == [state] * wanted
        states = of_all(states, wanted)


@pytest.mark.parametrize(
    "element", [b"", b"\xc0", b"\x92\x01\x02", b"\x91\xc4\x00", b"\xdd\xff\xff\xff\xff", b"\x92\xc4"]
)
def test_bytes_that_are_no_entry_are_refused(element: bytes) -> None:
    descriptor = MapStateDescriptor("m", object, serializer=Refusing())
    stored = {**StateSchema.of(descriptor).to_plain(), "serializer_version": 1}
    declared = DeclaredLists("it", {"m": (descriptor, BROADCAST)})
    with pytest.raises(JobError, match="operator state 'm': the stored element 0 cannot be converted"):
        declared.restored([OperatorList(stored, BROADCAST, (element,))])
    with pytest.raises(ValueError, match=r".*"):
        unpack_entry(element)


class Refusing(Serializer):
    name = "refusing"
    version = 2

    def dumps(self, value: object) -> bytes:
        return b""

    def loads(self, data: bytes) -> object:
        return data

    def loads_version(self, data: bytes, version: int) -> object:
        raise ValueError("of another age")


def test_element_that_cannot_be_converted_is_named() -> None:
    descriptor = ListStateDescriptor("a", object, serializer=Refusing())
    stored = {**StateSchema.of(descriptor).to_plain(), "serializer_version": 1}
    declared = DeclaredLists("it", {"a": (descriptor, SPLIT)})
    with pytest.raises(JobError, match=r"operator state 'a': the stored element 0 cannot be converted: ValueError"):
        declared.restored([OperatorList(stored, SPLIT, (b"x",))])
    assert declared.restored([])[0].elements == ()


def test_distribution_of_a_newer_version_is_refused() -> None:
    plain = {**split("a").to_plain(), "distribution": "by day"}
    with pytest.raises(
        CheckpointError, match="the file: operator state 'a' is distributed by 'by day': a newer qstate wrote it"
    ):
        operator_state_of({"operator_state": [plain]}, "the file")


def noted(epoch: int, subtask: int) -> OperatorState:
    return (split("noted", msgpack.packb(f"{epoch} of {subtask}")), union("common", b"\x01"))


@pytest.fixture
def job(tmp_path: Path) -> StoredJob:
    """Epochs 0 to 4 with operator state, and 5 that is not final."""
    return StoredJob(tmp_path / "checkpoint")


def run(job: StoredJob, epochs: range) -> None:
    for epoch in epochs:
        for subtask, log in enumerate(job.logs):
            log.seal(epoch, [], operator_state=noted(epoch, subtask))


def test_it_is_that_of_the_epoch_that_is_asked_for(job: StoredJob) -> None:
    run(job, range(3))
    job.snapshot(retained=2)
    run(job, range(3, 6))
    job.snapshot(retained=2)
    run(job, range(6, 8))
    job.restart()
    source = open_source(str(job.root))
    with pytest.raises(OutrunCheckpoint):
        source.operator_states(UID, 1)
    for epoch in (2, 3, 4, 5, 6, 7):
        assert source.operator_states(UID, epoch) == [noted(epoch, 0), noted(epoch, 1)]


def test_files_that_are_replaced_before_they_are_read_do_not_matter(job: StoredJob) -> None:
    run(job, range(3))
    chain = read_chain(DurableDirectory(job.directory(0)))
    take_snapshot(DurableDirectory(job.directory(0)), retained=1)
    assert chain is not None
    with pytest.raises(CheckpointError, match="is missing"):
        chain.operator_state()
    assert open_source(str(job.root)).operator_states(UID, 2)[0] == noted(2, 0)


def test_converted_base_carries_it(job: StoredJob) -> None:
    run(job, range(3))
    log = job.logs[0]
    log.write_base([])
    log.seal(3, [], operator_state=noted(3, 0))
    take_snapshot(DurableDirectory(job.directory(0)), retained=1)
    log.seal(4, [])
    job.restart()
    assert [job.logs[0].operator_state(), job.logs[1].operator_state()] == [(), noted(2, 1)]


def test_damaged_newest_epoch_takes_its_own_along(job: StoredJob) -> None:
    run(job, range(3))
    newest = max(job.directory(0).glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    job.restart()
    assert job.logs[0].operator_state() == noted(1, 0)


def test_savepoint_has_that_of_every_subtask(job: StoredJob, tmp_path: Path) -> None:
    run(job, range(3))
    write_savepoint(open_source(str(job.root)), tmp_path / "savepoint")
    savepoint = Savepoint.read(tmp_path / "savepoint")
    assert savepoint is not None
    assert savepoint.operator_states(UID, 1) == [noted(1, 0), noted(1, 1)]
    assert {found.damage for found in verify(str(tmp_path / "savepoint"))} == {None}


def test_verify_finds_damage_in_it(job: StoredJob) -> None:
    run(job, range(2))
    path = min(path for path in job.directory(0).glob("*.log") if b"0 of 0" in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"0 of 0", b"1 of 0"))
    assert [found.path for found in verify(str(job.root)) if found.damage is not None] == [str(path)]


def test_job_without_it_writes_what_it_always_wrote(tmp_path: Path) -> None:
    one, other = StoredJob(tmp_path / "one"), StoredJob(tmp_path / "other")
    one.logs[0].seal(0, [])
    other.logs[0].seal(0, [], operator_state=())
    names = [sorted(path.name for path in job.directory(0).iterdir()) for job in (one, other)]
    assert names[0] == names[1]
    for name in names[0]:
        assert (one.directory(0) / name).read_bytes() == (other.directory(0) / name).read_bytes()
