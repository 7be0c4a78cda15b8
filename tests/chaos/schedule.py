"""Which faults come, and when: drawn from a seed, so that the same seed gives the same faults.

Rules of this module: a pure function of its arguments. It keeps to what Spark survives (a task may fail three times),
so that nothing but a fault in the sink may stop a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.chaos.faults import Action, Fault, Place

__all__ = ["Life", "Scenario", "lives", "schedule"]

#: The last epochs are calm, so that what was made wrong before would have to be mended by itself.
CALM_EPOCHS = 4
MOST_FAULTS_OF_AN_EPOCH = 3
SEALING_STEPS = ("create", "write", "finish", "publish", "sync")
OPENING_STEPS = ("open", "finish", "publish", "sync")
SNAPSHOT_STEPS = ("open", "create", "write", "finish", "publish", "sync", "remove")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What chaos comes to. `sink`: "files", Spark's own, or "foreachBatch"."""

    master: str
    backend: str
    sink: str
    faults: int
    most_drivers_lost: int

    @property
    def on_cluster(self) -> bool:
        return self.master.startswith("local-cluster")


@dataclass(frozen=True, slots=True)
class Life:
    """What a driver runs the job with, from its start to its end."""

    backend: str
    parallelism: int


def lives(scenario: Scenario, seed: int) -> Iterator[Life]:
    """The lives of the drivers: half of them have another parallelism than the one before, some the other backend."""
    rng = Random(f"lives {seed} {scenario}")
    life = Life(scenario.backend, 2)
    while True:
        yield life
        if rng.random() < 0.5:
            life = replace(life, parallelism=rng.choice([one for one in (2, 3, 5) if one != life.parallelism]))
        if rng.random() < 0.25:
            life = replace(life, backend="heap" if life.backend == "rocksdb" else "rocksdb")


def schedule(scenario: Scenario, rows_of_epochs: Sequence[int], seed: int) -> list[Fault]:
    """The faults, numbered in the order in which their epochs come."""
    draw = _Draw(scenario, rows_of_epochs, Random(f"{seed} {scenario}"))
    epochs = [*range(len(rows_of_epochs) - CALM_EPOCHS)] * MOST_FAULTS_OF_AN_EPOCH
    chosen: list[Fault] = []
    for epoch in sorted(draw.rng.sample(epochs, min(scenario.faults, len(epochs)))):
        chosen += draw.some(epoch, len(chosen) + 1)
    return chosen[: scenario.faults]


class _Draw:
    """Draws one fault after the other, in the order of their epochs."""

    def __init__(self, scenario: Scenario, rows_of_epochs: Sequence[int], rng: Random) -> None:
        self.rng = rng
        self._scenario = scenario
        self._rows = rows_of_epochs
        self._drivers_lost = 0
        self._taken: set[int] = set()
        cluster, sink = scenario.on_cluster, scenario.sink == "foreachBatch"
        self._kinds: list[tuple[Callable[[int, int], list[Fault]], int]] = [
            (self._at_a_row, 8),
            (self._after_the_seal, 5 if cluster else 4),
            (self._in_the_sink, 4 if sink else 0),
            (self._while_sealing, 7),
            (self._while_opening, 3),
            (self._in_a_snapshot, 3),
        ]

    def some(self, epoch: int, number: int) -> list[Fault]:
        """One fault, or two that belong together."""
        (kind,) = self.rng.choices([kind for kind, _ in self._kinds], [weight for _, weight in self._kinds])
        return kind(epoch, number)

    def _at_a_row(self, epoch: int, number: int) -> list[Fault]:
        action = self._action(
            epoch,
            {
                Action.KILL_TASK_MANAGER: 4,
                Action.RAISE: 3,
                Action.KILL_DRIVER: 1,
                Action.KILL_JVM: 1,
                Action.KILL_EXECUTOR: 3,
                Action.KILL_WORKERS: 2,
                Action.KILL_STANDBY: 2,
                Action.FREEZE_TASK_MANAGER: 1,
                Action.FREEZE_DRIVER: 2,
            },
        )
        return [Fault(number, Place.ROW, action, epoch, row=self._row(epoch))]

    def _after_the_seal(self, epoch: int, number: int) -> list[Fault]:
        action = self._action(
            epoch,
            {
                Action.RAISE: 2,
                Action.KILL_TASK_MANAGER: 2,
                Action.KILL_DRIVER: 1,
                Action.KILL_EXECUTOR: 2,
                Action.KILL_WORKERS: 1,
                Action.KILL_STANDBY: 1,
            },
        )
        return [Fault(number, Place.SEALED, action, epoch, subtask=self.rng.randrange(2))]

    def _in_the_sink(self, epoch: int, number: int) -> list[Fault]:
        action = self._action(epoch, {Action.RAISE: 3, Action.KILL_TASK_MANAGER: 2, Action.KILL_DRIVER: 1})
        return [Fault(number, Place.SINK, action, epoch, subtask=self.rng.randrange(2))]

    def _while_sealing(self, epoch: int, number: int) -> list[Fault]:
        action = self._action(
            epoch,
            {
                Action.FAIL: 3,
                Action.SLOW: 1,
                Action.KILL_TASK_MANAGER: 4,
                Action.KILL_DRIVER: 1,
                Action.FREEZE_TASK_MANAGER: 2,
            },
        )
        step, done = self.rng.choice(SEALING_STEPS), self.rng.random() < 0.5
        return [Fault(number, Place.SEALING, action, epoch, step=step, done=done)]

    def _while_opening(self, epoch: int, number: int) -> list[Fault]:
        """A task manager is killed, and the next one has trouble as it comes up."""
        first = Fault(number, Place.ROW, Action.KILL_TASK_MANAGER, epoch, row=self._row(epoch))
        action = self.rng.choice([Action.FAIL, Action.SLOW, Action.KILL_TASK_MANAGER])
        step, done = self.rng.choice(OPENING_STEPS), self.rng.random() < 0.5
        return [first, Fault(number + 1, Place.OPENING, action, epoch, step=step, done=done, follows=number)]

    def _in_a_snapshot(self, epoch: int, number: int) -> list[Fault]:
        action = self.rng.choice([Action.FAIL, Action.SLOW, Action.KILL_SNAPSHOT])
        step, done = self.rng.choice(SNAPSHOT_STEPS), self.rng.random() < 0.5
        return [Fault(number, Place.SNAPSHOT, action, epoch, step=step, done=done)]

    def _action(self, epoch: int, weights: dict[Action, int]) -> Action:
        """One of these, as far as the scenario has it and Spark survives it."""
        possible = dict(weights)
        if self._drivers_lost == self._scenario.most_drivers_lost:
            possible.pop(Action.KILL_DRIVER, None)
            possible.pop(Action.KILL_JVM, None)
        if not self._scenario.on_cluster:
            possible.pop(Action.KILL_EXECUTOR, None)
        (action,) = self.rng.choices([*possible], [*possible.values()])
        self._drivers_lost += action in (Action.KILL_DRIVER, Action.KILL_JVM)
        return action

    def _row(self, epoch: int) -> int:
        """A row of the epoch that no other fault waits at."""
        first = sum(self._rows[:epoch])
        row = self.rng.choice([row for row in range(first, first + self._rows[epoch]) if row not in self._taken])
        self._taken.add(row)
        return row
