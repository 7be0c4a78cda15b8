"""Every byte of a checkpoint directory and of a savepoint may be damaged: no reader ever gets a wrong value.

Through the door that everybody reads by, damage is either found, or what is read is an older state, and right for the
epoch that it says it is of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate.checkpoint import open_source, verify, write_savepoint
from qstate.errors import CheckpointError
from tests.checkpoint.checkpoints import UID, StoredJob, held, state_after

LAST = 4
#: Every so many bytes, a different one in each file: prime, so that all parts of a block have their turn.
STRIDE = 7
TRUNCATIONS = 12
SMALL = 128


@pytest.fixture(params=["checkpoint", "savepoint"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    job = StoredJob(tmp_path / "checkpoint")
    job.run(range(2))
    job.snapshot()
    job.run(range(2, LAST + 1))
    if request.param == "savepoint":
        write_savepoint(open_source(str(job.root)), tmp_path / "savepoint")
    return tmp_path / str(request.param)


def read(location: Path) -> str:
    """What became of reading; fails for a value that is wrong."""
    try:
        source = open_source(str(location))
        stored = source.operators()[UID]
        found = held(source, stored.epoch)
    except CheckpointError as exc:
        assert str(location) in str(exc), "the message names the file"
        return "found"
    assert found == state_after(stored.epoch)
    return "current" if stored.epoch == LAST else "older"


def damages(sound: bytes, seed: int) -> Iterator[bytes]:
    positions = range(len(sound)) if len(sound) <= SMALL else range(seed % STRIDE, len(sound), STRIDE)
    for position in positions:
        damaged = bytearray(sound)
        damaged[position] ^= 1 << (position % 8)
        yield bytes(damaged)
    yield from (sound[: len(sound) * part // TRUNCATIONS] for part in range(TRUNCATIONS))
    yield sound[:-1]


def test_damage_gives_an_error_or_an_older_state_and_never_a_wrong_value(location: Path) -> None:
    assert read(location) == "current"
    paths = sorted(path for path in location.rglob("*") if path.is_file())
    for seed, path in enumerate(paths):
        sound = path.read_bytes()
        outcomes: Counter[str] = Counter()
        for damaged in damages(sound, seed):
            path.write_bytes(damaged)
            outcomes[read(location)] += 1
        path.write_bytes(sound)
        assert outcomes, path
        if path.suffix == ".savepoint" or path.name in ("savepoint.json", "job.json"):
            # White space and the like in JSON may change without a difference.
            assert outcomes["older"] == 0 and outcomes["found"] > 10 * outcomes["current"], path
        elif path.suffix == ".log" and path == max(path.parent.glob("*.log")):
            assert set(outcomes) == {"older"}, path
    assert read(location) == "current"


def test_file_under_the_name_of_another_is_not_taken(location: Path) -> None:
    kinds = (".log", ".snapshot", ".savepoint")
    others = {path: path.read_bytes() for path in location.parent.rglob("*") if path.suffix in kinds}
    for path, sound in others.items():
        if location in path.parents:
            for other, data in others.items():
                if other != path:
                    path.write_bytes(data)
                    read(location)
                    assert any(file.damage is not None for file in verify(str(location))), (path, other)
            path.write_bytes(sound)
    assert read(location) == "current"
