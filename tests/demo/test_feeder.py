"""The feeder releases whole files, in time order, and stops on request."""

from __future__ import annotations

from pathlib import Path

from qstate.demo.data import DataSet
from qstate.demo.feeder import Feeder


def test_every_day_arrives_with_its_time(winter: DataSet, tmp_path: Path) -> None:
    feeder = Feeder(winter, tmp_path / "incoming", days_per_s=100_000.0)
    assert not feeder.finished()
    feeder.start()
    feeder._thread.join(30.0)
    assert feeder.finished()
    for source, target in (
        (winter.flights_directory, feeder.directory / "flights"),
        (winter.weather_directory, feeder.directory / "weather"),
    ):
        arrived = {path.name: path.stat().st_mtime for path in target.iterdir()}
        assert arrived == {path.name: path.stat().st_mtime for path in source.iterdir()}


def test_stop_ends_the_wait_for_the_next_day(winter: DataSet, tmp_path: Path) -> None:
    feeder = Feeder(winter, tmp_path / "incoming", days_per_s=0.001)
    feeder.stop()  # before it began: nothing to end
    feeder = Feeder(winter, tmp_path / "again", days_per_s=0.001)
    feeder.start()
    feeder.stop()
    feeder.stop()
    assert feeder.finished()
    assert len(list((feeder.directory / "flights").iterdir())) <= 1
