"""Parts of values, read by both clients from a real served job on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import ConcurrentModification, ConfigError, TooLarge, UnknownState, UnsupportedQuery, WrongKeyType
from qstate.keys import encode_key
from qstate.runtime.client.results.value_parts import Pieces
from tests.runtime.client.real_job import DESCRIPTORS, KEYS, Job, MakeClient

VALUE, LIST, MAP = DESCRIPTORS[:3]
COUNT = 3000
ISOLATIONS = ["live", "committed"]


@pytest.fixture(params=["heap", "rocksdb"], scope="module")
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    job = Job(tmp_path_factory.mktemp("job"), backend=request.param)
    for epoch, subtask in enumerate(job.subtasks):
        subtask.commit(1)
        subtask.backend.begin(2)
        if epoch == 0:  # the owner of `LARGE`
            subtask.backend.table(MAP).put(LARGE, LARGE_MAP)
            subtask.backend.table(LIST).put(LARGE, [[number] for number in range(COUNT)])
        subtask.commit(2)
    yield job
    job.close()


#: A key of the first subtask.
LARGE = "large-2"
LARGE_MAP = {f"entry {number}": (number, "x" * 50) for number in range(COUNT)}


@pytest.fixture
def client(make: MakeClient, job: Job) -> Iterator[Any]:
    with make(job.proxy.address) as client:
        yield client


def test_parts_come_from_the_owner_or_through_the_proxy(make: MakeClient, job: Job, direct: bool | None) -> None:
    with make(job.proxy.address, direct=direct) as client:
        for number in range(40):  # of both owners; with `direct=None`, of the owners once they are reached
            key = KEYS[number]
            assert client.get_entries("job", "map", key, ["a"]).get("a") == client.get("job", "map", key).get("a")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_some_entries_are_a_view_of_these_entries_alone(client: Any, isolation: str) -> None:
    view = client.get_entries("job", "map", LARGE, ["entry 7", "no entry", "entry 8"], isolation=isolation)
    assert dict(view.entries()) == {"entry 7": (7, "x" * 50), "entry 8": (8, "x" * 50)}
    assert (view.isolation, view.epoch, view.contains("no entry")) == (isolation, 2, False)
    whole = client.get("job", "map", KEYS[3], "window", isolation)
    assert client.get_entries("job", "map", KEYS[3], [("b", 1), "a"], "window", isolation=isolation) == whole
    assert client.get_entries("job", "map", LARGE, ["no entry"], isolation=isolation) is None
    assert client.get_entries("job", "map", "no key", ["a"], isolation=isolation) is None


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_pages_give_each_entry_once_in_the_order_of_the_encoded_map_keys(client: Any, isolation: str) -> None:
    found: list[tuple[Any, Any]] = []
    page = client.get_page("job", "map", LARGE, isolation=isolation, limit=700)
    while True:
        assert page.view is None or len(page.view.entries()) <= 700
        found += () if page.view is None else page.view.entries()
        if page.after is None:
            break
        page = client.get_page("job", "map", LARGE, isolation=isolation, limit=700, after=page.after)
    assert found == sorted(LARGE_MAP.items(), key=lambda entry: encode_key(entry[0]))
    nothing = client.get_page("job", "map", "no key")
    assert (nothing.view, nothing.after) == (None, None)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_slice_has_the_elements_between_two_positions(client: Any, isolation: str) -> None:
    def found(**positions: Any) -> list[Any] | None:
        view = client.get_slice("job", "list", LARGE, isolation=isolation, **positions)
        return None if view is None else view.get()

    assert found(start=5, stop=8) == [[5], [6], [7]]
    assert found(stop=2) == [[0], [1]]
    assert found(start=COUNT - 1) == [[COUNT - 1]]
    assert found(start=COUNT - 2, stop=COUNT + 5) == [[COUNT - 2], [COUNT - 1]]
    assert found(start=COUNT) is None
    assert found(start=8, stop=5) is None
    assert len(found() or ()) == COUNT


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_size_is_the_number_of_elements_or_entries(client: Any, isolation: str) -> None:
    assert client.get_size("job", "list", LARGE, isolation=isolation) == COUNT
    assert client.get_size("job", "map", LARGE, isolation=isolation) == COUNT
    assert client.get_size("job", "map", KEYS[0], "window", isolation) == 2
    assert client.get_size("job", "map", "no key", isolation=isolation) == 0


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("state", [str(descriptor.queryable_name) for descriptor in DESCRIPTORS])
def test_every_kind_is_read_in_pieces(client: Any, state: str, isolation: str) -> None:
    assert client.get_large("job", state, KEYS[5], isolation=isolation) == client.get(
        "job", state, KEYS[5], isolation=isolation
    )
    assert client.get_large("job", state, "no key", isolation=isolation) is None


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_value_larger_than_a_frame_is_read_in_pieces(make: MakeClient, job: Job, isolation: str) -> None:
    with make(job.proxy.address, max_frame=8192) as client:
        for state in ("map", "list"):
            with pytest.raises(TooLarge, match="get_large"):
                client.get("job", state, LARGE, isolation=isolation)
        assert dict(client.get_large("job", "map", LARGE, isolation=isolation).entries()) == LARGE_MAP
        assert client.get_large("job", "list", LARGE, isolation=isolation).get() == [[one] for one in range(COUNT)]
        with pytest.raises(TooLarge):
            client.get_large("job", "map", LARGE, isolation=isolation, max_bytes=10_000)
        with pytest.raises(TooLarge):
            client.get_slice("job", "list", LARGE, isolation=isolation)
        page = client.get_page("job", "map", LARGE, isolation=isolation)
        assert page.after is not None and 0 < len(page.view.entries()) < 1000


def test_what_no_state_can_have_is_refused(client: Any) -> None:
    with pytest.raises(UnsupportedQuery):
        client.get_slice("job", "map", LARGE)
    with pytest.raises(UnsupportedQuery):
        client.get_entries("job", "list", LARGE, ["a"])
    with pytest.raises(UnsupportedQuery):
        client.get_size("job", "value", LARGE)
    with pytest.raises(UnknownState):
        client.get_size("job", "other", LARGE)
    with pytest.raises(WrongKeyType):
        client.get_size("job", "map", 5)
    for wrong in ({"limit": 0}, {"limit": True}, {"isolation": "dirty"}):
        with pytest.raises(ConfigError):
            client.get_page("job", "map", LARGE, **wrong)
    with pytest.raises(ConfigError):
        client.get_slice("job", "list", LARGE, start=-1)
    with pytest.raises(ConfigError):
        client.get_entries("job", "map", LARGE, [])
    with pytest.raises(WrongKeyType):
        client.get_entries("job", "map", LARGE, [1.5])
    with pytest.raises(TypeError):
        client.get_size("job", "map", LARGE, min_epochs=3)


def test_a_value_that_changes_while_it_is_read_is_read_again(make: MakeClient, tmp_path: Path) -> None:
    job = Job(tmp_path)
    backend = job.subtasks[0].backend
    changes = [0]

    def count_and_change(table: Any) -> None:
        if changes[0]:
            changes[0] -= 1
            backend.table(LIST).put(LARGE, [["x" * 100, changes[0]]] * 200)

    try:
        backend.table(LIST).put(LARGE, [["x" * 100]] * 200)
        with make(job.proxy.address, max_frame=8192, direct=False) as client:
            take = Pieces.take

            def taken(pieces: Any, *answer: Any) -> bool:
                count_and_change(None)
                return take(pieces, *answer)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Pieces, "take", taken)
                changes[0] = 3
                assert client.get_large("job", "list", LARGE).get() == [["x" * 100, 0]] * 200
                changes[0] = 100
                with pytest.raises(ConcurrentModification):
                    client.get_large("job", "list", LARGE)
    finally:
        job.close()
