"""What a reader takes for one history of a job is one, also when the directory is replaced while it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from qstate.checkpoint.manifest import JobManifest
from qstate.checkpoint.sources.change_feed import ChangeFeed, CompactedEpoch, FedState
from qstate.checkpoint.sources.following import FollowedOperator
from qstate.checkpoint.sources.history import JobHistory, OutrunCheckpoint
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.evolution import StateSchema
from tests.checkpoint.checkpoints import DESCRIPTORS, EVERY, UID, StoredJob, held, state_after

TOTAL = FedState(StateSchema.of(next(one for one in DESCRIPTORS if one.name == "total")), None)


class WatchedDirectory(DurableDirectory):
    """Calls `before_listing` before it lists files, here and in the directories below."""

    def __init__(self, path: Path, before_listing: Callable[[], None]) -> None:
        super().__init__(path, make=False)
        self._before_listing = before_listing

    def joinpath(self, *parts: str) -> WatchedDirectory:
        return WatchedDirectory(self.path.joinpath(*parts), self._before_listing)

    def names(self) -> list[str]:
        self._before_listing()
        return super().names()


class Replaced:
    """A directory with the epochs 0 to 3. Its reader may find it replaced, just before it lists files.

    The other history has no epoch 1, so its state as of each later epoch is another one.
    """

    def __init__(self, tmp_path: Path) -> None:
        self._path, self._before, self._other = (tmp_path / name for name in ("checkpoint", "before", "other"))
        self.manifest = _written(self._path, range(4))
        _written(self._other, [0, 2, 3, 4])
        self.other_state = held(open_source(str(self._other)), 4)
        self.root = WatchedDirectory(self._path, self._listing)
        self._listings: int | None = None

    def replace_before(self, listing: int) -> None:
        """Replace the directory when so many listings are made from now on."""
        self._listings = listing

    @property
    def done(self) -> bool:
        """Whether it is replaced."""
        return self._before.exists()

    def bring_back(self) -> None:
        shutil.rmtree(self._path)
        self._before.rename(self._path)

    def _listing(self) -> None:
        if self._listings == 0:
            self._path.rename(self._before)
            self._other.rename(self._path)
        if self._listings is not None:
            self._listings -= 1


def _written(root: Path, epochs: Iterable[int]) -> JobManifest:
    job = StoredJob(root)
    manifest = job.manifest.with_new_history()
    manifest.write(root)
    job.run(epochs)
    return manifest


@pytest.fixture
def replaced(tmp_path: Path) -> Replaced:
    return Replaced(tmp_path)


@pytest.mark.parametrize("looked", [False, True], ids=["at the first look", "at a later look"])
def test_feed_takes_no_epoch_of_a_history_that_comes_while_it_looks(replaced: Replaced, looked: bool) -> None:
    history = replaced.manifest.history_of(UID)
    assert history is not None
    feed = ChangeFeed(replaced.root, UID, EVERY, history, 1)
    if looked:
        assert feed.next_epoch(TOTAL, 1) == 1
    replaced.replace_before(0)
    feed.finalize(3)
    for _ in range(2):
        with pytest.raises(CompactedEpoch) as caught:
            feed.next_epoch(TOTAL, 2)
        assert caught.value.oldest == 4
        with pytest.raises(CompactedEpoch):
            feed.changes(TOTAL, 1, 0)
    assert replaced.done
    replaced.bring_back()
    assert [feed.next_epoch(TOTAL, epoch) for epoch in range(4)] == [0, 1, 2, 3], "the directory was brought back"


@pytest.mark.parametrize("looked", [False, True], ids=["at the first look", "at a later look"])
def test_follower_takes_no_epoch_of_a_history_that_comes_while_it_looks(replaced: Replaced, looked: bool) -> None:
    followed = FollowedOperator(replaced.root, UID)
    if looked:
        followed.look(replaced.manifest)
        followed.mark_applied(3)
    replaced.replace_before(0)
    for _ in range(2):
        with pytest.raises(OutrunCheckpoint, match="replaced by another history while it was read; try again"):
            followed.look(replaced.manifest)
        assert (followed.final(9), followed.epochs(9), followed.continues) == (-1, [], False)
    assert replaced.done
    replaced.bring_back()
    followed.look(replaced.manifest)
    assert followed.final(3) == 3
    assert not followed.continues, "it has lost what it knew of the files: its user begins with the whole state"


@pytest.mark.parametrize("listing", range(6))
def test_state_is_never_a_mixture_of_two_histories(replaced: Replaced, listing: int) -> None:
    source = JobHistory(replaced.root, replaced.manifest)
    replaced.replace_before(listing)
    try:
        assert held(source, 3) == state_after(3)
        assert not replaced.done
    except OutrunCheckpoint:
        assert replaced.done
        with pytest.raises(OutrunCheckpoint):
            source.operator_states(UID, 3)
        source.look_again()
        assert held(source, 4) == replaced.other_state


@pytest.mark.parametrize("listing", range(10))
def test_savepoint_is_begun_anew_when_another_history_comes(replaced: Replaced, tmp_path: Path, listing: int) -> None:
    replaced.replace_before(listing)
    savepoint = write_savepoint(JobHistory(replaced.root, replaced.manifest), tmp_path / "savepoint")
    epoch = savepoint.operators()[UID].epoch
    assert epoch == (4 if replaced.done else 3)
    assert held(savepoint, epoch) == (replaced.other_state if replaced.done else state_after(3))
