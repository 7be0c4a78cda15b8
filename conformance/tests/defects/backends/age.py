"""Defects that appear after thousands of operations. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from qstate.backends import BackendContext, Change
from qstate.keys import Key
from tests.defects.backends.sound import DictBackend, TableProxy, WithTables


class EpochNumbersWrapAround(DictBackend):
    """The final epoch has a number of eleven bits, so committed reads stay behind after 2,048 epochs."""

    caught_by = "backend.soak.thousands_of_epochs_leave_what_a_dict_would"

    def _replace_final(self) -> None:
        if self._committed.epoch < 2**11:
            super()._replace_final()


class AdditionsOverrun(WithTables):
    """The addition after the 16,383rd to one list is lost."""

    caught_by = "backend.soak.a_list_of_thousands_of_additions_has_them_all"

    class proxy(TableProxy):
        def list_add(self, key: Key, values: Sequence[Any]) -> None:
            counts = self.backend.__dict__.setdefault("counts", {})
            counts[key] = counts.get(key, 0) + 1
            if counts[key] != 2**14:
                super().list_add(key, values)


class PutsOverrun(WithTables):
    """A counter of writes has sixteen bits. The write that brings it back to zero is not counted as a write."""

    caught_by = "backend.soak.a_hundred_thousand_puts_lose_none"

    class proxy(TableProxy):
        def put(self, key: Key, value: Any) -> None:
            self.backend.__dict__["puts"] = number = self.backend.__dict__.get("puts", 0) + 1
            if number % 2**16:
                super().put(key, value)


class EpochsKept(DictBackend):
    """The backend keeps the changes of every commit."""

    caught_by = "backend.soak.what_a_backend_occupies_does_not_grow_with_its_age"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.kept: list[Change] = []

    def commit(self, epoch: int) -> Iterator[Change]:
        for change in super().commit(epoch):
            self.kept.append(change)
            yield change


class AFileForEachEpoch(DictBackend):
    """Every commit opens a file, and leaves it open until the end."""

    caught_by = "backend.soak.what_a_backend_occupies_does_not_grow_with_its_age"

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.files: list[IO[bytes]] = []

    def commit(self, epoch: int) -> Iterator[Change]:
        if epoch % 50 == 0:
            self.files.append((self.context.directory / f"{epoch}").open("wb"))
        return super().commit(epoch)

    def close(self) -> None:
        for file in self.files:
            file.close()
        super().close()


class LogNeverCut(DictBackend):
    """A log on disk keeps everything that was ever written."""

    caught_by = "backend.soak.what_a_backend_occupies_does_not_grow_with_its_age"

    def commit(self, epoch: int) -> Iterator[Change]:
        with (self.context.directory / "log").open("ab") as log:
            for change in super().commit(epoch):
                log.write(change.data)
                yield change
