"""Whether a Python data source can take Spark's filters: not while these tests fail, which is why `qstate` takes none.

When one of them passes, it says so by an error ("unexpectedly passing"). When all pass, and with the settings that
Spark has by default, `LiveState` may choose keys and prefixes by `pushFilters`: see docs/explanation/architecture.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Letters(DataSource):
    """The letters a, b and c, and only one of them if there is a filter for it."""

    @classmethod
    def name(cls) -> str:
        return "letters"

    def schema(self) -> str:
        return "letter string"

    def reader(self, schema: Any) -> DataSourceReader:
        return LettersReader()


class LettersReader(DataSourceReader):
    wanted = ("a", "b", "c")

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Spark filters again: all come back as not supported."""
        self.wanted = tuple(one.value for one in filters if isinstance(one, EqualTo)) or self.wanted
        return filters

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        for letter in self.wanted:
            yield (letter,)


@pytest.fixture
def letters(spark: Any) -> Iterator[Any]:
    spark.dataSource.register(Letters)
    spark.conf.set(PUSHDOWN, "true")
    yield spark.read.format("letters").load()
    spark.conf.unset(PUSHDOWN)


def found(frame: Any) -> list[str]:
    return sorted(row.letter for row in frame.collect())


def test_a_filter_alone_is_taken(letters: Any) -> None:
    assert found(letters.where("letter = 'b'")) == ["b"]


@pytest.mark.xfail(strict=True, reason="Spark keeps what a reader has planned with the table, not with the query")
def test_a_query_without_a_filter_reads_all_after_one_with_a_filter(letters: Any) -> None:
    assert found(letters.where("letter = 'a'")) == ["a"]
    assert found(letters) == ["a", "b", "c"]


@pytest.mark.xfail(strict=True, reason="both sides read what the last filter has planned")
def test_two_filters_of_one_query_are_apart(letters: Any) -> None:
    assert found(letters.where("letter = 'a'").union(letters.where("letter = 'b'"))) == ["a", "b"]


@pytest.mark.xfail(strict=True, reason="Spark refuses every read of a source that has pushFilters while it is off")
def test_a_source_with_filters_can_be_read_with_the_settings_of_spark(spark: Any, letters: Any) -> None:
    spark.conf.unset(PUSHDOWN)
    assert found(letters) == ["a", "b", "c"]
