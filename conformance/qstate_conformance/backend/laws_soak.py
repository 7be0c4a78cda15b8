"""Laws of endurance: what goes wrong after thousands of operations. They run in the profile `nightly` alone."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qstate.backends import Capability, Change, Isolation
from qstate_conformance.backend.child import Child
from qstate_conformance.backend.contents import all_places, check_reads, check_tables, query_one
from qstate_conformance.backend.instances import Instances, sealed
from qstate_conformance.backend.model import Model, check_equal, check_same
from qstate_conformance.backend.scenarios import writes_of_epoch
from qstate_conformance.backend.states import LIST, MAP, VALUE
from qstate_conformance.backend.writes import apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

_EPOCHS = 3_000
_ADDITIONS = 20_000
_PUTS = 100_000
#: Epochs of the life that is watched; by the end of its first third caches and buffers of a usual size are full.
_WATCHED, _SAMPLES = 6_000, 60
#: A backend that keeps something of every epoch grows by at least what it was given to write in them.
_MOST_GROWTH = 0.2
_LEEWAY_MIB, _LEEWAY = 16, 2
_SILENCE_S = 600.0


@law("B3", "B4", "B12", "R3", "T6", soak=True)
def test_thousands_of_epochs_leave_what_a_dict_would(subject: BackendSubject) -> None:
    """After three thousand epochs, some undone, tables, answers, entries and all changes together are right."""
    model, changes, committed = Model(), list[Change](), Capability.COMMITTED_READS in subject.capabilities
    places = all_places(write.place for epoch in range(20) for write in writes_of_epoch(epoch))
    with Instances(subject) as instances:
        backend = instances.open()
        for epoch in range(_EPOCHS):
            backend.begin(epoch)
            if epoch % 7 == 0:
                apply(writes_of_epoch(epoch + 1), backend, Model())
                backend.publish()
                backend.rollback()
                backend.begin(epoch)
            apply(writes_of_epoch(epoch), backend, model)
            changes += sealed(backend, epoch)
            backend.finalize(epoch)
            if epoch % 250 == 249:
                check_tables(backend, model, places)
                check_reads(backend, Isolation.LIVE, model, places)
                if committed:
                    check_reads(backend, Isolation.COMMITTED, model, places)
                check_tables(instances.restored(epoch, list(backend.entries(ALL))), model, places)
        check_tables(instances.restored(_EPOCHS, changes), model, places)


@law("T8", "B19", soak=True)
def test_a_list_of_thousands_of_additions_has_them_all(subject: BackendSubject) -> None:
    """A list has all of twenty thousand elements that were added one by one in forty epochs, in order."""
    expected = list(range(_ADDITIONS))
    with Instances(subject) as instances:
        backend, changes = instances.open(), list[Change]()
        for epoch in range(40):
            backend.begin(epoch)
            table = backend.table(LIST)
            for number in expected[epoch * _ADDITIONS // 40 : (epoch + 1) * _ADDITIONS // 40]:
                table.list_add("k", [number])
            if epoch % 10 == 0:
                backend.publish()
            changes += sealed(backend, epoch)
        check_equal(table.get("k"), expected)
        check_equal(query_one(backend, Isolation.LIVE, LIST, "k"), expected)
        for told in (changes, list(backend.entries(ALL))):
            check_equal(instances.restored(39, told).table(LIST).get("k"), expected)


@law("T1", "T9", "B19", soak=True)
def test_a_hundred_thousand_puts_lose_none(subject: BackendSubject) -> None:
    """A hundred thousand values and map entries are right after single writes, some repeated, in ten epochs."""
    values: dict[int, int] = {}
    with Instances(subject) as instances:
        backend, changes = instances.open(), list[Change]()
        for epoch in range(10):
            backend.begin(epoch)
            numbers, entries = backend.table(VALUE), backend.table(MAP)
            # Half of the keys of an epoch are those of the one before.
            keys = range(epoch * _PUTS // 20, epoch * _PUTS // 20 + _PUTS // 10)
            for key in keys:
                numbers.put(key, epoch)
                values[key] = epoch
                if key % 10 == 0:
                    entries.map_put(("m", key % 1_000), key, epoch)
            for key in keys[:100]:
                numbers.delete(key)
                del values[key]
            changes += sealed(backend, epoch)
            backend.finalize(epoch)
            assert [key for key in keys if numbers.get(key) != values.get(key)][:5] == [], f"after epoch {epoch}"
        maps: dict[int, dict[int, int]] = {}
        for key in range(0, keys.stop, 10):
            maps.setdefault(key % 1_000, {})[key] = min(key // (_PUTS // 20), 9)
        for holder in (backend, instances.restored(9, changes)):
            assert [key for key in range(keys.stop) if holder.table(VALUE).get(key) != values.get(key)][:5] == []
            for number, expected in maps.items():
                check_same(holder.table(MAP).get(("m", number)), expected)


@law("B20", soak=True)
def test_what_a_backend_occupies_does_not_grow_with_its_age(subject: BackendSubject) -> None:
    """While thousands of epochs overwrite a small state, memory, disk, open files and threads do not grow."""
    samples: list[Mapping[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Child(subject, "age", Path(scratch) / "own", {"epochs": _WATCHED, "samples": _SAMPLES}) as child,
    ):
        # At once, and not in the end: a backend that keeps everything must not fill the disk of the machine.
        while "end" not in (said := child.says(_SILENCE_S)):
            samples.append(said)
            if len(samples) > _SAMPLES // 3:
                _check_growth(samples[: _SAMPLES // 3], said)


def _check_growth(young: Sequence[Mapping[str, Any]], old: Mapping[str, Any]) -> None:
    """Fail if usage exceeds the maximum of the first third by more than a little."""
    most = {what: max(sample[what] for sample in young) for what in old}
    written = old["written_mib"] - most["written_mib"]
    for what in ("memory_mib", "disk_mib"):
        grown = old[what] - most[what]
        assert grown <= _LEEWAY_MIB + _MOST_GROWTH * written, (
            f"{what}: {grown:.0f} more than before {written:.0f} MiB were written over others"
        )
    for what in ("files", "threads", "processes"):
        assert old[what] <= most[what] + _LEEWAY, f"{what}: {old[what]}, {most[what]} at most in the first third"
