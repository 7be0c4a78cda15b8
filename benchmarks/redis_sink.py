"""The last value per key into Redis, as a Spark task does it fastest: Arrow batches, pipelined MSETs of 1000.

Rules of this module: it runs in Spark's Python workers. Values are made text by Arrow, not one by one in Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from benchmarks.optional_packages import optional

__all__ = ["RedisWriter"]

KEYS_PER_MSET = 1000
#: MSETs per round trip.
MSETS_PER_PIPELINE = 10


class RedisWriter:
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
