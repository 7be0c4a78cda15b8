"""The cache against a model: whatever happens to a job, no answer is wrong, and none is older than its bound."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from qstate.client import ClientCache, QueryableStateClient
from qstate.errors import QueryError
from tests.runtime.client.written_job import JOB, STATE, WrittenJob

KEYS = ("a", "b", "c", "d")
#: A get is answered by the cache for so long after the last news, and the steps take longer.
BOUND_S = 0.05

keys = st.sampled_from(KEYS)
steps = st.lists(
    st.tuples(st.just("commit"), st.dictionaries(keys, st.none() | st.integers(0, 9), max_size=3))
    | st.tuples(st.just("gets"), st.lists(keys, min_size=1, max_size=4))
    | st.tuples(st.just("gets"), st.lists(keys, min_size=1, max_size=4))
    | st.tuples(st.sampled_from(["fail over", "compact", "pause", "begin again"]), st.none()),
    min_size=3,
    max_size=14,
)


class Model:
    """What each epoch has left, in this life and the one before, and when it was committed."""

    def __init__(self) -> None:
        self.lives: list[list[tuple[float, dict[str, int]]]] = [[]]

    def committed(self, changes: dict[str, int | None]) -> None:
        life = self.lives[-1]
        left = {**(life[-1][1] if life else {}), **changes}
        life.append((time.monotonic(), {key: to for key, to in left.items() if to is not None}))

    def allows(self, key: str, view: Any, asked_at: float) -> bool:
        """Whether an epoch left this that was the newest one at some time within the bound before the get."""
        found = None if view is None else view.value()
        for number, life in enumerate(self.lives):
            ends = [at for at, _ in life[1:]]
            ends.append(time.monotonic() if number == len(self.lives) - 1 else self.lives[number + 1][0][0])
            for epoch, ((_, left), until) in enumerate(zip(life, ends, strict=True)):
                if until >= asked_at - BOUND_S and left.get(key) == found and (view is None or view.epoch == epoch):
                    return True
        return False


@given(steps)
@example([("commit", {"a": 1}), ("gets", ["a"]), ("begin again", None), ("gets", ["a", "a"])])
@example([("commit", {"a": 1}), ("gets", ["a"]), ("begin again", None), ("commit", {"b": 1}), ("gets", ["a", "b"])])
@example([("commit", {"a": 1}), ("gets", ["a"]), ("commit", {"a": None}), ("compact", None), ("gets", ["a"])])
@example([("commit", {"a": 1}), ("gets", ["a"]), ("fail over", None), ("commit", {"a": 2}), ("gets", ["a"])])
@settings(max_examples=12, deadline=None)
def test_every_answer_is_of_an_epoch_that_was_the_newest_within_the_bound(found: list[tuple[str, Any]]) -> None:
    model, waiting = Model(), threading.Event()
    with TemporaryDirectory() as directory:
        job = WrittenJob(Path(directory))
        try:
            job.commit({})
            model.committed({})
            with QueryableStateClient(*job.proxy.address, cache=ClientCache(max_staleness_s=BOUND_S)) as client:
                for step, argument in found:
                    if step == "commit":
                        job.commit(argument)
                        model.committed(argument)
                    elif step == "gets":
                        _ask(client, model, argument)
                    elif step == "fail over":
                        job.lose()
                        job.recover()
                    elif step == "compact":
                        job.compact()
                    elif step == "begin again":
                        job.begin()
                        model.lives.append([])
                        job.commit({})
                        model.committed({})
                    else:
                        waiting.wait(BOUND_S / 2)
                _ask(client, model, KEYS)
        finally:
            job.close()


def _ask(client: QueryableStateClient, model: Model, asked: Any) -> None:
    """Each key several times: the first gets are answered by servers, the others by the cache."""
    for key in asked:
        for _ in range(20):
            asked_at = time.monotonic()
            try:
                view = client.get(JOB, STATE, key, isolation="committed", timeout_s=5.0)
            except QueryError:
                continue
            assert model.allows(key, view, asked_at), f"{key} is {view}; {model.lives}"
