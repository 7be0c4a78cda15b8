"""The epoch log in ordinary life: what is sealed is there for the next writer, whole and in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint import LogIdentity
from qstate.checkpoint.log import segment as segment_module
from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.checkpoint.manifest import subtask_directory
from qstate.errors import CheckpointError, SerializationError
from tests.checkpoint.logs import IDENTITY, change, held, open_log, output_of

TEXT = st.text(max_size=6)
BYTES = st.binary(max_size=12)
CHANGES = st.builds(
    Change, st.sampled_from(ChangeOp), TEXT, st.integers(0, 32767), BYTES, BYTES, st.just(b"") | BYTES, BYTES
)


def test_new_log_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path / "deep" / "log")
    assert log.latest() is None
    assert held(log) == []


def test_sealed_epochs_survive_in_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.seal(0, [change("a"), change("b")], [b"one", b"two"])
    log.seal(1, [change("a", b"\x02")])
    for reopened in (log, open_log(tmp_path)):
        assert reopened.latest() == 1
        assert held(reopened) == [change("a"), change("b"), change("a", b"\x02")]
        assert output_of(reopened, 0) == [b"one", b"two"]
        assert output_of(reopened, 1) == []


def test_what_identifies_the_rows_survives_with_the_epoch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    some, none = EpochInput(3, (1 << 64) - 1, 7), EpochInput(0, 0, 7)
    log.seal(0, [], epoch_input=some)
    log.seal(1, [], epoch_input=none)
    log.seal(2, [])
    for reopened in (log, open_log(tmp_path)):
        assert [reopened.epoch_input(epoch) for epoch in range(4)] == [some, none, None, None]


@given(epochs=st.lists(st.lists(CHANGES, max_size=30), max_size=4))
def test_changes_come_back_equal(tmp_path_factory: pytest.TempPathFactory, epochs: list[list[Change]]) -> None:
    directory = tmp_path_factory.mktemp("log")
    log = open_log(directory)
    for epoch, changes in enumerate(epochs):
        log.seal(epoch, iter(changes))
    found = held(open_log(directory))
    assert found == [change for changes in epochs for change in changes]
    assert all(type(one) is Change and type(one.op) is ChangeOp for one in found)


def test_changes_of_many_blocks_come_back_equal(tmp_path: Path) -> None:
    changes = [change(f"key {number}", bytes(number % 700)) for number in range(20_000)]
    log = open_log(tmp_path)
    log.seal(0, iter(changes))
    assert held(log) == changes


def test_one_large_value_makes_a_block_of_its_own(tmp_path: Path) -> None:
    changes = [change("small"), change("large", bytes(3 << 20)), change("small again")]
    log = open_log(tmp_path)
    log.seal(0, changes)
    assert held(log) == changes


def test_gap_in_epoch_numbers_is_legal(tmp_path: Path) -> None:
    open_log(tmp_path).seal(5, [change("a")])
    log = open_log(tmp_path)
    log.seal(9, [change("b")])
    assert open_log(tmp_path).latest() == 9


@pytest.mark.parametrize("epoch", [-1, 3, 4])
def test_epochs_only_go_up(tmp_path: Path, epoch: int) -> None:
    log = open_log(tmp_path)
    log.seal(4, [])
    with pytest.raises(CheckpointError, match=f"epoch {epoch} cannot be sealed after epoch 4"):
        log.seal(epoch, [])


def test_spooled_output_is_the_output(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    spool = log.begin_output()
    for frame in (b"one", bytearray(b"two"), memoryview(b"three")):
        spool.append(frame)
    log.seal(0, [], spool)
    assert output_of(open_log(tmp_path), 0) == [b"one", b"two", b"three"]


def test_discarded_spool_leaves_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    spool = log.begin_output()
    spool.append(b"frame")
    spool.discard()
    spool.discard()
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.log"]


def test_output_of_a_given_up_epoch_is_not_the_next_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.begin_output().discard()
    log.seal(0, [], [b"right"])
    assert output_of(log, 0) == [b"right"]


def test_dropped_output_is_gone_and_says_so(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for epoch in range(3):
        log.seal(epoch, [], [b"frame"])
    log.drop_output(before_epoch=2)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".log"] * 4 + [".output"]
    assert output_of(log, 2) == [b"frame"]
    with pytest.raises(CheckpointError, match="is missing, or was dropped"):
        output_of(log, 1)


def test_output_can_be_dropped_by_a_later_writer(tmp_path: Path) -> None:
    open_log(tmp_path).seal(0, [], [b"frame"])
    open_log(tmp_path).drop_output(before_epoch=1)
    assert not list(tmp_path.glob("*.output"))


def test_output_of_an_unknown_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="epoch 3 is not sealed"):
        output_of(open_log(tmp_path), 3)


def test_failing_changes_seal_nothing_and_the_log_goes_on(tmp_path: Path) -> None:
    def failing() -> Iterator[Change]:
        yield change("a")
        raise SerializationError("does not fit")

    log = open_log(tmp_path)
    with pytest.raises(SerializationError, match="does not fit"):
        log.seal(0, failing(), [b"frame"])
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.log"]
    log.seal(0, [change("b")])
    assert held(open_log(tmp_path)) == [change("b")]


def test_failing_output_seals_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"frame"
        raise RuntimeError("connection lost")

    log = open_log(tmp_path)
    with pytest.raises(RuntimeError, match="connection lost"):
        log.seal(0, [], failing())
    assert [path.name for path in tmp_path.iterdir()] == ["000000000001.log"]


@pytest.mark.parametrize(
    "other",
    [
        LogIdentity("another job", "operator", 0, 2, 128),
        LogIdentity("job", "another operator", 0, 2, 128),
        LogIdentity("job", "operator", 1, 2, 128),
        LogIdentity("job", "operator", 0, 4, 128),
        LogIdentity("job", "operator", 0, 2, 256),
    ],
)
def test_another_identity_is_refused_and_changes_nothing(tmp_path: Path, other: LogIdentity) -> None:
    open_log(tmp_path).seal(0, [change("a")])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"000000000001\.log belongs to job 'job'.*but was opened for"):
        open_log(tmp_path, other)
    assert sorted(tmp_path.iterdir()) == before


def test_directories_of_operators_never_meet(tmp_path: Path) -> None:
    uids = ["a", "A", "a/b", "a_b", "..", ".", "", "é" * 200, "é" * 201, " a", "a ", "%61"]
    identities = [LogIdentity("job", uid, subtask, 2, 128) for uid in uids for subtask in (0, 1)]
    directories = {subtask_directory(tmp_path, one.operator, 0, one.subtask) for one in identities}
    assert len(directories) == len(identities)
    for identity in identities:
        directory = subtask_directory(tmp_path, identity.operator, 0, identity.subtask)
        assert directory.resolve().parents[2] == tmp_path.resolve()
        open_log(directory, identity).seal(0, [])


def test_log_of_a_newer_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.checkpoint.log.chain.FORMAT", 3)
    open_log(tmp_path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 3, expected 2"):
        open_log(tmp_path)


def test_entry_beyond_the_block_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_module, "LARGEST_BLOCK", 1000)
    log = open_log(tmp_path)
    with pytest.raises(CheckpointError, match="larger than the epoch log can hold"):
        log.seal(0, [change("a", bytes(1001))])


def test_directory_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"cannot open the epoch log.*file"):
        open_log(tmp_path / "file")


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".nfs0001").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    open_log(tmp_path).seal(0, [], [b"frame"])
    open_log(tmp_path, IDENTITY)
    assert (tmp_path / ".nfs0001").exists() and (tmp_path / "notes.txt").exists()
