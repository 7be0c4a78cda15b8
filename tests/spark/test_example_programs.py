"""The programs under `examples/temperature` and `examples/golden_signals` print what they show."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.streams import LOCAL, LOCAL_CLUSTER, REPOSITORY, start_spark

DIRECTORY = REPOSITORY / "examples" / "temperature"
GOLDEN_SIGNALS = REPOSITORY / "examples" / "golden_signals" / "golden_signals.py"
OUTPUTS = {
    "alert": """
        attic 00:00:31 23.0 43.1
        kitchen 00:00:45 34.4 64.5
    """,
    "flat_map": """
        attic 00:00:31 23.0 43.1
        kitchen 00:00:45 34.4 64.5
    """,
    "high_readings": """
        two subtasks:
        attic 0 1
        cellar 0 1
        kitchen 1 11
        ten subtasks, which begin with a tenth of the list each:
        attic 0 3
        cellar 4 1
        kitchen 5 12
    """,
    "checkpointed": """
        two subtasks:
        attic 25.8 9
        cellar 30.8 10
        kitchen 35.8 59
        ten subtasks, which begin with a tenth of the counts each:
        attic 25.8 3
        cellar 30.8 11
        kitchen 35.8 71
    """,
    "self_cleaning": """
        attic cleared
        attic has no temperature
        cellar has 30.9
        kitchen has 35.9
    """,
    "thresholds": """
        cellar 00:00:11 26.1 26.0
        kitchen 00:00:07 45.7 40.0
        attic 00:00:31 43.1 28.0
        cellar 00:00:31 28.1 28.0
        kitchen 00:00:45 64.5 60.0
        cold has the threshold 28.0
        warm has the threshold 60.0
        outdoor has no threshold
    """,
    "configuration": """
        attic 20.0
        cellar 25.0
        kitchen 30.0
        kitchen 45.7
        attic 43.1
        kitchen 64.5
        backend rocksdb
        snapshot_interval 50
        retained_snapshots 3
        max_parallelism 720
        epochs stored: 3
    """,
    "queryable": """
                 00:00:00 00:00:10 00:00:20 00:00:30 00:00:40 00:00:50
        attic        20.9     21.9     22.9     43.1     24.9     25.9
        cellar       25.9     26.9     27.9     28.9     29.9     30.9
        kitchen      45.7     31.9     32.9     33.9     64.5     35.9
    """,
}


def printed(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[str]:
    """The lines that a program prints, run as a script beside a session that is there already."""
    monkeypatch.syspath_prepend(program.parent)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    capsys.readouterr()
    try:
        runpy.run_path(str(program), run_name="__main__")
    finally:
        for module in ("readings", "dashboard"):
            sys.modules.pop(module, None)
    return [line.split() for line in capsys.readouterr().out.strip().splitlines()]


def expected(name: str) -> list[list[str]]:
    return [line.split() for line in OUTPUTS[name].strip().splitlines()]


#: The master, and the backend that a program uses unless it names one itself. The programs know neither.
PLACES = [
    (LOCAL, "heap"),
    (LOCAL_CLUSTER, "rocksdb"),
    pytest.param((LOCAL, "rocksdb"), marks=pytest.mark.soak),
    pytest.param((LOCAL_CLUSTER, "heap"), marks=pytest.mark.soak),
]


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[None]:
    """A session on this master, which the programs find, and this backend."""
    master, backend = request.param
    session = start_spark(master)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QSTATE_EXAMPLE_BACKEND", backend)
        yield
    if master == LOCAL_CLUSTER:
        session.stop()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", OUTPUTS)
def test_program_prints_what_it_shows(name: str, capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    assert printed(DIRECTORY / f"{name}.py", capsys, monkeypatch, tmp_path) == expected(name)


@pytest.mark.usefixtures("place")
def test_golden_signals_are_served_until_they_expire(capsys: Any, monkeypatch: Any, tmp_path: Path) -> None:
    *signals, last = printed(GOLDEN_SIGNALS, capsys, monkeypatch, tmp_path)
    assert [" ".join(words) for words in signals] == [
        f"00:0{minute} {service} {{'requests': 60, 'errors': {errors}, 'p50_ms': 50, 'p99_ms': 500}}"
        for minute in range(3)
        for service in ("checkout", "search")
        for errors in [0.1 if (minute, service) == (1, "checkout") else 0.0]
    ]
    assert " ".join(last) == "checkout has no incident any more"


def test_every_program_is_in_the_table_of_the_page() -> None:
    page = (DIRECTORY / "README.md").read_text()
    programs = {path.stem for path in DIRECTORY.glob("*.py")} - {"readings"}
    assert {name for name in programs if f"{name}.py" in page} == programs == {*OUTPUTS, "dashboard"}
