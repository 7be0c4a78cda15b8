"""The change feed yields exactly the changes of committed epochs, as far back as the files reach."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from qstate.backends.contract import Change
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.sources.change_feed import ChangeFeed, CompactedEpoch, EpochChanges, FedState
from qstate.checkpoint.sources.superseded_layouts import remove_layout
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import DamagedCheckpoint
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange
from tests.checkpoint.checkpoints import DESCRIPTORS, EVERY, KEYS, QUERY, SCHEMAS, UID, StoredJob, changes_of

STATES = {one.name: FedState(StateSchema.of(one), None) for one in DESCRIPTORS}
TOTAL = STATES["total"]


def feed_of(root: Path, final: int = -1, groups: KeyGroupRange = EVERY, **options: int) -> ChangeFeed:
    return ChangeFeed(directory_of(root), UID, groups, QUERY, final, **options)


def changes_in(found: EpochChanges) -> list[Change]:
    return [change for _, block in found.blocks(0, len(found)) for change in block.changes()]


def whole(feed: ChangeFeed, state: FedState, epoch: int) -> list[Change]:
    """The changes of an epoch, window by window."""
    found: list[Change] = []
    first = feed.groups.start
    while first < feed.groups.stop:
        window = feed.changes(state, epoch, first)
        start = window.ordinal(first)
        found += [change for _, block in window.blocks(start, len(window)) for change in block.changes()]
        first = window.stop
    return found


def epochs(feed: ChangeFeed, state: FedState, first: int) -> list[int]:
    found = []
    epoch = feed.next_epoch(state, first)
    while epoch is not None:
        found.append(epoch)
        epoch = feed.next_epoch(state, epoch + 1)
    return found


def expected(epoch: int, state: str = "total", groups: KeyGroupRange = EVERY) -> list[Change]:
    of_state = [change for change in changes_of(epoch) if change.state == state and change.group in groups]
    return sorted(of_state, key=lambda change: change.group)


@pytest.mark.parametrize("state", STATES)
def test_changes_of_each_epoch_ascend_by_key_group_in_the_order_made(tmp_path: Path, state: str) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=3)
    job.run(range(4))
    feed = feed_of(tmp_path / "checkpoint", 3)
    assert epochs(feed, STATES[state], 0) == [0, 1, 2, 3]
    for epoch in range(4):
        assert whole(feed, STATES[state], epoch) == expected(epoch, state)


def test_epoch_is_not_yielded_before_it_is_final(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint")
    feed = feed_of(tmp_path / "checkpoint")
    job.run(range(3))
    assert feed.next_epoch(TOTAL, 0) is None
    feed.finalize(1)
    assert epochs(feed, TOTAL, 0) == [0, 1]
    feed.finalize(0)
    assert feed.final == 1, "a late report takes nothing back"


def test_feed_of_some_key_groups_has_only_theirs(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(2))
    groups = KeyGroupRange(3, 6)
    assert whole(feed_of(tmp_path / "checkpoint", 1, groups), TOTAL, 1) == expected(1, groups=groups)


def test_new_epochs_are_found_one_by_one(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint")
    feed = feed_of(tmp_path / "checkpoint")
    for epoch in range(5):
        job.run([epoch])
        feed.finalize(epoch)
        assert epochs(feed, TOTAL, epoch) == [epoch]
        assert whole(feed, TOTAL, epoch) == expected(epoch)


def test_skipped_epoch_numbers_are_no_epochs(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint")
    job.run([0, 3, 4])
    assert epochs(feed_of(tmp_path / "checkpoint", 4), TOTAL, 1) == [3, 4]


@pytest.mark.parametrize("known", [False, True])
def test_epoch_that_a_snapshot_replaced_is_compacted(tmp_path: Path, known: bool) -> None:
    """Also when the feed has known the file before it was removed."""
    job = StoredJob(tmp_path / "checkpoint")
    feed = feed_of(tmp_path / "checkpoint", 5)
    job.run(range(4))
    job.snapshot()
    job.run([4, 5])
    if known:
        assert epochs(feed, TOTAL, 0) == [0, 1, 2, 3, 4, 5]
    job.snapshot(retained=1)
    job.run([6, 7])
    if known:
        with pytest.raises(CompactedEpoch) as caught:
            feed.changes(TOTAL, 5, 0)
        assert caught.value.oldest == 6
    feed.finalize(7)
    with pytest.raises(CompactedEpoch) as caught:
        feed.next_epoch(TOTAL, 5)
    assert caught.value.oldest == 6
    assert epochs(feed, TOTAL, 6) == [6, 7]


def test_feed_forgets_the_epochs_whose_files_are_gone(tmp_path: Path) -> None:
    """Else the memory of a feed would grow with each epoch."""
    job = StoredJob(tmp_path / "checkpoint", parallelism=1)
    feed = feed_of(tmp_path / "checkpoint")
    for epoch in range(40):
        job.run([epoch])
        feed.finalize(epoch)
        feed.next_epoch(TOTAL, epoch)
        if epoch % 5 == 4:
            job.snapshot(retained=1)
    assert [len(log.sealed) for layout in feed._layouts for log in layout] == [5]


def test_epochs_of_the_layout_before_are_read(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(3))
    job.rescale(3, 3, range(3))
    job.restart()
    job.run([3, 4])
    for subtask in range(3):
        groups = KeyGroupRange.of_subtask(subtask, 3, EVERY.stop)
        feed = feed_of(tmp_path / "checkpoint", 4, groups)
        assert epochs(feed, TOTAL, 0) == [0, 1, 2, 3, 4]
        for epoch in range(5):
            assert whole(feed, TOTAL, epoch) == expected(epoch, groups=groups)


def test_layout_that_only_some_subtasks_have_begun_is_read_where_it_is(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(3))
    job.rescale(4, 3, [1])
    feed = feed_of(tmp_path / "checkpoint", 2)
    assert epochs(feed, TOTAL, 0) == [0, 1, 2]
    assert whole(feed, TOTAL, 2) == expected(2)


def test_epoch_is_whole_although_one_subtask_had_sealed_it_when_the_feed_looked(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    feed = feed_of(tmp_path / "checkpoint")
    job.run([0])
    job.seal(1, [0])
    feed.finalize(0)
    assert epochs(feed, TOTAL, 0) == [0]
    job.seal(1, [1])
    feed.finalize(1)
    assert epochs(feed, TOTAL, 1) == [1]
    assert whole(feed, TOTAL, 1) == expected(1)


def test_epoch_that_another_parallelism_makes_again_is_whole(tmp_path: Path) -> None:
    """The layout before has the epoch too, in some subtasks: its files must not stand for those that follow."""
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(3))
    job.seal(3, [0])
    job.rescale(3, 3, range(3))
    job.restart()
    feeds = [
        feed_of(tmp_path / "checkpoint", 2, KeyGroupRange.of_subtask(subtask, 3, EVERY.stop)) for subtask in range(3)
    ]
    for feed in feeds:
        assert epochs(feed, TOTAL, 2) == [2]
    job.run([3])
    for feed in feeds:
        feed.finalize(3)
        assert epochs(feed, TOTAL, 3) == [3]
        assert whole(feed, TOTAL, 3) == expected(3, groups=feed.groups)


@pytest.mark.parametrize("known", [True, False])
def test_epoch_that_was_made_again_is_never_read_where_it_was_made_first(tmp_path: Path, known: bool) -> None:
    """The layout before has sealed epoch 3 and Spark has not committed it there; the layout now has only a snapshot."""
    job = StoredJob(tmp_path / "checkpoint", parallelism=1)
    job.run(range(3))
    job.logs[0].seal(3, [])
    job.rescale(2, 3, range(2))
    job.restart()
    feed = feed_of(tmp_path / "checkpoint", 2)
    job.run([3])
    feed.finalize(3)
    if known:
        assert whole(feed, TOTAL, 3) == expected(3)
    job.snapshot(retained=1)
    job.run([4])
    feed.finalize(4)
    if not known:
        with pytest.raises(CompactedEpoch) as caught:
            feed.next_epoch(TOTAL, 2)
        assert caught.value.oldest == 4
    assert epochs(feed, TOTAL, 4) == [4]
    with pytest.raises(CompactedEpoch):
        feed.next_epoch(TOTAL, 3)


def test_epochs_before_a_removed_layout_are_compacted(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(3))
    old = [directory_of(job.directory(subtask)) for subtask in range(2)]
    job.rescale(3, 3, range(3))
    job.restart()
    job.run([3])
    for directory in old:
        for name in directory.names():
            directory.remove(name)
    with pytest.raises(CompactedEpoch) as caught:
        feed_of(tmp_path / "checkpoint", 3).next_epoch(TOTAL, 2)
    assert caught.value.oldest == 3


@pytest.mark.parametrize("looked", [False, True], ids=["before the first look", "after a look"])
@pytest.mark.parametrize("snapshot", [False, True], ids=["without a snapshot", "with a snapshot"])
def test_a_layout_that_is_being_removed_takes_no_later_epoch_from_its_readers(
    tmp_path: Path, snapshot: bool, looked: bool
) -> None:
    """The removal may be at any of its files, and may have been stopped there."""
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(2))
    if snapshot:
        job.snapshot()
    job.run([2])
    layout = directory_of(job.directory(0).parent)
    job.rescale(3, 3, range(3))
    job.restart()
    job.run([3])
    feed = feed_of(tmp_path / "checkpoint", 3)
    if looked:
        assert epochs(feed, TOTAL, 2) == [2, 3]
    job.run([4])
    while layout.names():
        remove_layout(layout, stopping=partial(next, iter([False, True]), True))
        again = feed if looked else feed_of(tmp_path / "checkpoint", 3)
        again.finalize(4)
        assert epochs(again, TOTAL, 3) == [3, 4]
        assert whole(again, TOTAL, 4) == expected(4)
    with pytest.raises(CompactedEpoch) as caught:
        feed_of(tmp_path / "checkpoint", 4).next_epoch(TOTAL, 2)
    assert caught.value.oldest == 3


def test_a_layout_is_not_taken_for_removed_while_key_groups_are_read_in_it(tmp_path: Path) -> None:
    """Only some subtasks of the layout now have begun, so a missing file of the one before is damage."""
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run(range(3))
    first = directory_of(job.directory(0))
    job.rescale(4, 3, [1])
    first.remove(min(first.names()))
    with pytest.raises(DamagedCheckpoint):
        feed_of(tmp_path / "checkpoint", 2).next_epoch(TOTAL, 0)


def test_epochs_in_another_form_are_compacted(tmp_path: Path) -> None:
    """Only the job can convert values; those that it sealed before are of another description."""
    job = StoredJob(tmp_path / "checkpoint", parallelism=1)
    job.run(range(2))
    newer = [{**plain, "schema_version": 2} if plain["name"] == "total" else plain for plain in SCHEMAS]
    job.logs = [EpochLog.open(job.directory(0), job.identity(0), lambda _: newer)]
    job.run([2, 3])
    feed = feed_of(tmp_path / "checkpoint", 3)
    form = FedState(StateSchema.from_plain(next(plain for plain in newer if plain["name"] == "total")), None)
    with pytest.raises(CompactedEpoch) as caught:
        feed.next_epoch(form, 1)
    assert caught.value.oldest == 2
    assert epochs(feed, STATES["last"], 0) == [0, 1, 2, 3], "the form of this state is the same"


@pytest.mark.parametrize("looked", [False, True], ids=["before the first look", "after a look"])
@pytest.mark.parametrize("what", ["emptied", "another query", "a new history"])
def test_nothing_is_read_of_a_history_that_takes_over_the_directory(tmp_path: Path, what: str, looked: bool) -> None:
    root = tmp_path / "checkpoint"
    StoredJob(root).run(range(4))
    feed = feed_of(root, 1)
    if looked:
        assert feed.next_epoch(TOTAL, 1) == 1
    root.rename(tmp_path / "before")
    if what != "emptied":
        job = StoredJob(root)
        job.run(range(4))
        other = job.manifest.with_operator(UID, "another") if what == "another query" else job.manifest
        (other if other != job.manifest else other.with_new_history()).write(root)
    feed.finalize(3)
    with pytest.raises(CompactedEpoch) as caught:
        feed.next_epoch(TOTAL, 2)
    assert caught.value.oldest == 4
    assert feed.next_epoch(TOTAL, 4) is None
    shutil.rmtree(root, ignore_errors=True)
    (tmp_path / "before").rename(root)
    assert feed.next_epoch(TOTAL, 2) == 2, "the directory was brought back"


def test_epoch_is_decoded_once_for_all_readers(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint")
    job.run(range(2))
    feed = feed_of(tmp_path / "checkpoint", 1)
    assert feed.next_epoch(TOTAL, 1) == 1
    assert feed.changes(TOTAL, 1, 0) is feed.changes(TOTAL, 1, 5)
    assert feed.changes(STATES["last"], 1, 0) is feed.changes(STATES["last"], 1, 0)


@pytest.mark.parametrize("most_bytes", [1, 100, 1000])
def test_large_epoch_is_decoded_in_windows_of_key_groups(tmp_path: Path, most_bytes: int) -> None:
    job = StoredJob(tmp_path / "checkpoint")
    job.run(range(3))
    feed = feed_of(tmp_path / "checkpoint", 2, most_bytes=most_bytes)
    for epoch in epochs(feed, TOTAL, 0):
        assert whole(feed, TOTAL, epoch) == expected(epoch)
        held = [size for _, size in feed._kept.values()]
        assert len(held) == 1 or sum(held) <= most_bytes


def test_places_are_the_same_whoever_reads(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint", parallelism=2)
    job.run([0])
    by_all = feed_of(tmp_path / "checkpoint", 0).changes(TOTAL, 0, 0)
    half = KeyGroupRange(4, 8)
    by_half = feed_of(tmp_path / "checkpoint", 0, half).changes(TOTAL, 0, 4)
    places = [by_half.place(ordinal) for ordinal in range(len(by_half))]
    found = [by_all.ordinal(*place) for place in places]
    assert [changes_in(by_all)[ordinal] for ordinal in found] == changes_in(by_half)
    assert by_half.ordinal(4, 10_000) == by_half.ordinal(5), "a place after the last change of a key group"


def test_changes_of_some_keys_are_found_by_key(tmp_path: Path) -> None:
    job = StoredJob(tmp_path / "checkpoint")
    job.run([0])
    found = feed_of(tmp_path / "checkpoint", 0).changes(STATES["visits"], 0, 0)
    key = expected(0, "visits")[0].key
    of_key = [change for _, block in found.of_keys([key, b"\xa1?"], 0, len(found)) for change in block.changes()]
    assert of_key == [change for change in expected(0, "visits") if change.key == key]
    assert len(of_key) == 2 and len(KEYS) > 2


def test_waiting_reader_is_told_of_the_next_final_epoch_once(tmp_path: Path) -> None:
    StoredJob(tmp_path / "checkpoint")
    feed = feed_of(tmp_path / "checkpoint", 0)
    calls: list[int] = []
    assert not feed.once(-1, lambda: calls.append(-1)), "epoch 0 is final already"
    assert feed.once(0, lambda: calls.append(feed.final))
    feed.finalize(1)
    feed.finalize(2)
    assert calls == [1]
    assert feed.once(2, lambda: calls.append(9))
    feed.close()
    assert calls == [1, 9]
    assert not feed.once(2, lambda: calls.append(10))
