"""The fencing of a subtask's attempts: the table in `qstate.checkpoint.log.attempts`, by rows and against a model."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qstate.checkpoint import EpochAttempts, Process, Replay
from qstate.errors import FencedError

FRESH = Process(rollback=False, gap=False)
AFTER_ROLLBACK = Process(rollback=True, gap=False)


def test_first_epoch_of_an_empty_log_is_processed() -> None:
    assert EpochAttempts().open(0, 7) == FRESH


def test_sealed_epoch_is_replayed_to_any_attempt() -> None:
    attempts = EpochAttempts(sealed=4)
    assert [attempts.open(4, attempt) for attempt in (0, 9, 9, 1)] == [Replay(4)] * 4
    assert attempts.running is None


def test_epoch_is_replayed_after_its_own_seal() -> None:
    attempts = EpochAttempts()
    attempts.open(0, 3)
    attempts.seal(0, 3)
    assert attempts.sealed == 0
    assert attempts.open(0, 2) == Replay(0)


def test_epoch_before_the_sealed_one_is_fenced() -> None:
    with pytest.raises(FencedError, match="epoch 3 is older than epoch 4"):
        EpochAttempts(sealed=4).open(3, 100)


def test_sealed_epoch_is_fenced_once_the_next_one_was_started() -> None:
    attempts = EpochAttempts(sealed=4)
    attempts.open(5, 1)
    with pytest.raises(FencedError, match="epoch 4 is older than epoch 5"):
        attempts.open(4, 2)
    assert attempts.running == (5, 1)


def test_newer_attempt_cuts_off_the_older_one_and_rolls_back() -> None:
    attempts = EpochAttempts(sealed=4)
    assert attempts.open(5, 1) == FRESH
    assert attempts.open(5, 2) == AFTER_ROLLBACK
    with pytest.raises(FencedError, match="attempt 1 of epoch 5 was cut off; running is attempt 2 of epoch 5"):
        attempts.check(5, 1)
    with pytest.raises(FencedError):
        attempts.seal(5, 1)
    assert attempts.sealed == 4


def test_older_attempt_of_the_running_epoch_is_fenced() -> None:
    attempts = EpochAttempts()
    attempts.open(0, 5)
    with pytest.raises(FencedError, match="attempt 4 of epoch 0 was cut off by attempt 5"):
        attempts.open(0, 4)


def test_running_attempt_cannot_be_opened_twice() -> None:
    attempts = EpochAttempts()
    attempts.open(0, 5)
    with pytest.raises(FencedError, match="running already"):
        attempts.open(0, 5)
    assert attempts.running == (0, 5)


def test_abandoned_attempt_may_come_again_but_an_older_one_may_not() -> None:
    attempts = EpochAttempts()
    attempts.open(0, 5)
    assert attempts.abandon(0, 5)
    with pytest.raises(FencedError):
        attempts.open(0, 4)
    assert attempts.open(0, 5) == AFTER_ROLLBACK


def test_abandoning_when_cut_off_changes_nothing() -> None:
    attempts = EpochAttempts()
    attempts.open(0, 1)
    attempts.open(0, 2)
    assert not attempts.abandon(0, 1)
    assert attempts.running == (0, 2)


def test_attempt_number_of_an_earlier_epoch_does_not_seal_a_later_one() -> None:
    attempts = EpochAttempts()
    attempts.open(0, 1)
    attempts.open(1, 1)
    with pytest.raises(FencedError):
        attempts.seal(0, 1)
    attempts.seal(1, 1)
    assert attempts.sealed == 1


@pytest.mark.parametrize(("sealed", "epoch"), [(None, 1), (None, 57), (3, 5), (0, 2)])
def test_missing_epochs_are_reported_as_a_gap(sealed: int | None, epoch: int) -> None:
    assert EpochAttempts(sealed).open(epoch, 0) == Process(rollback=False, gap=True)


def test_later_epoch_cuts_off_one_that_was_never_sealed() -> None:
    attempts = EpochAttempts(sealed=3)
    attempts.open(4, 8)
    assert attempts.open(5, 1) == Process(rollback=True, gap=True)
    with pytest.raises(FencedError):
        attempts.open(4, 9)


EPOCHS = st.integers(0, 4)
ATTEMPTS = st.integers(0, 3)


class AttemptsAgainstHistory(RuleBasedStateMachine):
    """The model keeps every event and derives each decision from the whole history, with no state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = EpochAttempts()
        self.history: list[tuple[str, int, int]] = []

    def events(self, kind: str) -> list[tuple[int, int]]:
        return [(epoch, attempt) for name, epoch, attempt in self.history if name == kind]

    def sealed_epoch(self) -> int:
        return max((epoch for epoch, _ in self.events("sealed")), default=-1)

    def running(self) -> tuple[int, int] | None:
        """The last opening, unless it was sealed or abandoned afterwards."""
        if not self.history or self.history[-1][0] != "opened":
            return None
        return self.history[-1][1:]

    def expected(self, epoch: int, attempt: int) -> Process | Replay | None:
        opened = self.events("opened")
        if any(epoch < other for other, _ in opened):
            return None
        if epoch == self.sealed_epoch():
            return Replay(epoch)
        rivals = [number for other, number in opened if other == epoch]
        if any(attempt < number for number in rivals) or self.running() == (epoch, attempt):
            return None
        unsealed = bool(self.history) and self.history[-1][0] != "sealed"
        return Process(rollback=unsealed, gap=epoch != self.sealed_epoch() + 1)

    @rule(epoch=EPOCHS, attempt=ATTEMPTS)
    def open(self, epoch: int, attempt: int) -> None:
        expected = self.expected(epoch, attempt)
        if expected is None:
            with pytest.raises(FencedError):
                self.attempts.open(epoch, attempt)
            return
        assert self.attempts.open(epoch, attempt) == expected
        if isinstance(expected, Process):
            self.history.append(("opened", epoch, attempt))

    @rule(epoch=EPOCHS, attempt=ATTEMPTS)
    def seal(self, epoch: int, attempt: int) -> None:
        if self.running() == (epoch, attempt):
            self.attempts.seal(epoch, attempt)
            self.history.append(("sealed", epoch, attempt))
        else:
            with pytest.raises(FencedError):
                self.attempts.seal(epoch, attempt)

    @rule(epoch=EPOCHS, attempt=ATTEMPTS)
    def abandon(self, epoch: int, attempt: int) -> None:
        was_running = self.running() == (epoch, attempt)
        assert self.attempts.abandon(epoch, attempt) == was_running
        if was_running:
            self.history.append(("abandoned", epoch, attempt))

    @rule()
    def seal_the_running_one(self) -> None:
        running = self.running()
        if running is not None:
            self.seal(*running)

    @invariant()
    def agrees_on_what_is_sealed_and_running(self) -> None:
        assert (-1 if self.attempts.sealed is None else self.attempts.sealed) == self.sealed_epoch()
        assert self.attempts.running == self.running()


TestAttemptsAgainstHistory = AttemptsAgainstHistory.TestCase
