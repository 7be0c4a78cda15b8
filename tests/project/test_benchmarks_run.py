"""Every benchmark runs to its end and reports in the form that the table and the plots are made of.

Sizes are tiny and no time is looked at. The benchmarks run as a process of their own, as `tox -e bench` runs them:
Spark and all that they start have to be gone when it ends.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.soak]

REPOSITORY = Path(__file__).parents[2]
LIVE_GETS = {"P8 one, p99", "P8 64, gets/s", "P8 64, p99", "P8b 64, gets/s", "P8b 256, gets/s"}
TARGETS = {
    *("P1", "P2", "P2b", "P3", "P4 direct", "P4 proxy", "P5", "P6", "P7", *LIVE_GETS),
    *(
        "P9",
        "P10",
        "P11",
        "P12",
        "P13",
        "P14 rows",
        "P14 ceiling",
        "P15 one",
        "P15 hundred",
        "P15 p99",
        "P15 cost",
        "P16",
        "P17 standby",
        "P17 alone",
        "P19",
        "P20",
    ),
}
AGAINST_SPARK, AGAINST_REDIS = {"P1", "P2"}, {"P3", "P4 direct", "P4 proxy", "P5", "P6"}
CURVES = {
    "get latency against keys",
    "get latency against value size",
    "get throughput against gets in flight",
    "commit against all entries",
    "commit against changed entries",
    "peak memory against timers",
    "registering against timers",
    "resident memory against keys",
    "snapshot against keys",
    "pipeline against keys",
    "pipeline against parallelism",
}
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the run printed, and where it wrote."""
    output = tmp_path_factory.mktemp("benchmarks")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--tiny", "--output", str(output)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, output


@pytest.fixture(scope="module")
def results(finished: tuple[str, Path]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((finished[1] / "results.json").read_text())
    return found


def test_every_target_is_compared_or_says_why_not(results: Mapping[str, Any]) -> None:
    assert {comparison["target_id"] for comparison in results["comparisons"]} == TARGETS
    absent = (set() if find_spec("google") and find_spec("google.protobuf") else AGAINST_SPARK) | (
        set() if shutil.which("redis-server") and find_spec("redis") and find_spec("hiredis") else AGAINST_REDIS
    )
    for comparison in results["comparisons"]:
        assert all(sample > 0 for sample in comparison["ours"]) and comparison["ours"]
        if comparison["target_id"] in absent:
            assert comparison["value"] is None
            assert comparison["verdict"] == "not measured"
            assert "not" in comparison["missing"] or "no" in comparison["missing"]
        else:
            assert comparison["value"] > 0
            assert comparison["verdict"] in ("met", "met, stretch too", "NOT MET")


def test_both_sides_of_a_comparison_have_as_many_rounds(results: Mapping[str, Any]) -> None:
    for comparison in results["comparisons"]:
        assert not comparison["theirs"] or len(comparison["theirs"]) == len(comparison["ours"])


def test_live_gets_are_measured_with_both_clients_and_only_the_usual_one_counts(results: Mapping[str, Any]) -> None:
    live = [one for one in results["comparisons"] if one["target_id"] in LIVE_GETS]
    assert len(live) == 2 * len(LIVE_GETS)
    for one in live:
        assert one["counts"] == (one["detail"] == "client without options")


def test_growth_is_measured_at_every_size(results: Mapping[str, Any]) -> None:
    curves = {curve["name"]: curve for curve in results["curves"]}
    assert curves.keys() == CURVES
    for curve in curves.values():
        for points in curve["lines"].values():
            assert len(points) >= 2
            assert [x for x, _ in points] == sorted({x for x, _ in points})
            assert all(y > 0 for _, y in points)


def test_the_machine_and_the_versions_are_written_down(results: Mapping[str, Any]) -> None:
    assert {"processor", "cores", "load_average", "python", "java", "pyspark", "redis-server"} <= results[
        "machine"
    ].keys()


def test_the_table_names_every_target_with_its_floor(finished: tuple[str, Path]) -> None:
    printed = finished[0]
    for name in TARGETS:
        assert name in printed
    assert "floor" in printed


def test_plots_are_drawn_where_matplotlib_is(finished: tuple[str, Path]) -> None:
    drawn = {path.name for path in finished[1].glob("*.png")}
    expected = {f"growth-{name.replace(' ', '-')}.png" for name in CURVES} | {"margins.png"}
    assert drawn == (expected if find_spec("matplotlib") else set())


def test_unknown_benchmark_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "p99"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "p99" in done.stderr
