"""The last value per key into Redis from Spark's tasks, twice: as users write it, and the fastest way that we know.

Rules of this module: it runs in Spark's Python workers. Both ways write pipelined MSETs of 1000 through redis-py. The
common one is `foreachPartition` over rows. The fastest takes Arrow batches and lets Arrow make the values text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import pyarrow as pa

from benchmarks.optional_packages import optional

__all__ = ["ArrowRedisWriter", "RowRedisWriter"]

KEYS_PER_MSET = 1000
#: MSETs per round trip.
MSETS_PER_PIPELINE = 10


class RowRedisWriter:
    """The argument of `foreachPartition`: writes (key, value) rows."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, rows: Iterator[Any]) -> None:
        redis: Any = optional("redis")
        with closing(redis.Redis("127.0.0.1", self._port)) as client:
            pipeline = client.pipeline(transaction=False)
            while found := dict(islice(rows, KEYS_PER_MSET)):
                pipeline.mset(found)
                if len(pipeline) >= MSETS_PER_PIPELINE:
                    pipeline.execute()
            pipeline.execute()


class ArrowRedisWriter:
    """The argument of `mapInArrow`: writes (key, value) rows and gives none."""

    def __init__(self, port: int) -> None:
        self._port = port

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        redis: Any = optional("redis")
        with closing(redis.Redis("127.0.0.1", self._port)) as client:
            pipeline = client.pipeline(transaction=False)
            for batch in batches:
                keys = batch.column(0).to_pylist()
                values = batch.column(1).cast(pa.string()).to_pylist()
                for start in range(0, len(keys), KEYS_PER_MSET):
                    stop = start + KEYS_PER_MSET
                    pipeline.mset(dict(zip(keys[start:stop], values[start:stop], strict=True)))
                    if len(pipeline) >= MSETS_PER_PIPELINE:
                        pipeline.execute()
            pipeline.execute()
        yield from ()
