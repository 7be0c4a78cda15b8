"""A directory whose process dies at a chosen call, for tests of what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from qstate.checkpoint.storage.local_directory import DurableDirectory

__all__ = ["Crash", "MortalDirectory", "dies_in"]

Result = TypeVar("Result")


class Crash(BaseException):
    """The process is gone. Not an `Exception`, so that nothing tidies up by mistake."""


class MortalDirectory(DurableDirectory):
    """Dies at a given call, before or after it took effect, and stays dead. Knows what a power loss would take."""

    def __init__(self, path: Path, dies_at: int, after: bool) -> None:
        self.calls = 0
        self._dies_at = dies_at
        self._after = after
        self._opened: list[tuple[BinaryIO, Path]] = []
        self.unsynced_bytes: set[Path] = set()
        self.unsynced_names: set[Path] = set()
        super().__init__(path)

    def _step(self, call: Callable[[], Result]) -> Result:
        self.calls += 1
        if self.calls > self._dies_at or (self.calls == self._dies_at and not self._after):
            raise Crash
        result = call()
        if self.calls == self._dies_at:
            raise Crash
        return result

    def names(self) -> list[str]:
        return self._step(super().names)

    def create(self, name: str) -> BinaryIO:
        def create_and_remember() -> BinaryIO:
            file = super(MortalDirectory, self).create(name)
            self._opened.append((file, self.path / name))
            self.unsynced_bytes.add(self.path / name)
            self.unsynced_names.add(self.path / name)
            return file

        return self._step(create_and_remember)

    def finish(self, file: BinaryIO) -> None:
        self._step(lambda: super(MortalDirectory, self).finish(file))
        self.unsynced_bytes -= {path for opened, path in self._opened if opened is file}

    def publish(self, temporary: str, name: str) -> None:
        # Before the call: a crash right after it leaves a name that is on no disk yet.
        self.unsynced_names.add(self.path / name)
        if self.path / temporary in self.unsynced_bytes:
            self.unsynced_bytes.add(self.path / name)
        self._step(lambda: super(MortalDirectory, self).publish(temporary, name))

    def remove(self, name: str) -> None:
        self._step(lambda: super(MortalDirectory, self).remove(name))

    def sync(self) -> None:
        self._step(super().sync)
        self.unsynced_names.clear()

    def bury(self) -> None:
        """Close what the dead process had open, as the system does."""
        for file, _ in self._opened:
            file.close()

    def lose_power(self, lost_names: set[Path]) -> None:
        """Take half of what was never synced of a file, and some of the names that were not."""
        for path in self.unsynced_bytes:
            if path.exists():
                data = path.read_bytes()
                path.unlink()
                path.write_bytes(data[: len(data) // 2])
        for path in lost_names:
            path.unlink(missing_ok=True)


def dies_in(act: Callable[..., object], files: MortalDirectory, **arguments: Any) -> bool:
    """Let a process act on its directory; whether it died of that. Its files are closed either way."""
    try:
        act(files, **arguments)
    except Crash:
        return True
    finally:
        files.bury()
    return False
