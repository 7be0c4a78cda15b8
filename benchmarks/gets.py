"""P4, P5 and P6: gets of many shapes, against the same gets from Redis through redis-py with hiredis.

Rules of this module: both serve the same keys and values over loopback, from one process each; the qstate job is
a real task manager with the heap backend. Contenders take turns in every round. What a call gives is used: a view's
value is decoded in P4 and P5; P6 is measured twice, as it comes (a view, bytes) and decoded to numbers on both sides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing
from itertools import cycle, islice
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.latencies import durations_us, in_flight, percentile
from benchmarks.optional_packages import optional, run_async
from benchmarks.redis_server import redis_server, unavailable
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved
from benchmarks.served_job import JOB, STATE, ServedJob
from benchmarks.sizes import Sizes
from qstate.runtime.client.async_client import AsyncQueryableStateClient
from qstate.runtime.client.sync_client import QueryableStateClient

__all__ = ["run"]

KEYS_PER_GET_MANY = 100
IN_FLIGHT = 64
LOOPBACK = "127.0.0.1"

Samples = dict[str, list[float]]


def run(bench: Bench) -> Findings:
    """Run those of P4, P5 and P6 that are selected."""
    values = {f"key-{i}": i * 0.5 for i in range(bench.sizes.held_keys)}
    absent = unavailable()
    with ExitStack() as stack:
        job = stack.enter_context(ServedJob(pa.float64()))
        job.hold(values)
        port = 0 if absent else stack.enter_context(redis_server(bench.directory("redis")))
        if not absent:
            _fill_redis(port, values)
        findings = Findings()
        for name, measure in (("p4", _single_gets), ("p5", _gets_in_flight), ("p6", _many_gets)):
            if bench.wants(name):
                findings.add(measure(bench.sizes, job.proxy, port))
    return findings


def _fill_redis(port: int, values: dict[str, float]) -> None:
    with closing(optional("redis").Redis(LOOPBACK, port)) as client:
        client.mset({key: repr(value) for key, value in values.items()})


def _single_gets(sizes: Sizes, proxy: tuple[str, int], port: int) -> Findings:
    keys = _keys(sizes)
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        for name in ("direct", "proxy"):
            client = stack.enter_context(QueryableStateClient(*proxy, direct=name == "direct"))
            contenders[name] = _p50_of_gets(client, keys, sizes.gets_a_round)
        if port:
            redis_get = stack.enter_context(closing(optional("redis").Redis(LOOPBACK, port))).get
            contenders["redis"] = lambda: percentile(durations_us(redis_get, islice(keys, sizes.gets_a_round)), 50)
        samples = interleaved(contenders, rounds=sizes.get_rounds)
    theirs = samples.get("redis", [])
    return Findings(
        [
            Comparison(f"P4 {name}", "us", samples[name], theirs, "Redis GET", "", unavailable())
            for name in ("direct", "proxy")
        ]
    )


def _p50_of_gets(client: QueryableStateClient, keys: Any, count: int) -> Callable[[], float]:
    get = client.get

    def get_value(key: str) -> Any:
        return get(JOB, STATE, key).value()

    return lambda: percentile(durations_us(get_value, islice(keys, count)), 50)


def _gets_in_flight(sizes: Sizes, proxy: tuple[str, int], port: int) -> Findings:
    samples = run_async(_rounds_in_flight(sizes, proxy, port))
    loop = "uvloop" if optional("uvloop") else "asyncio"
    detail = f"both on {loop}"
    comparison = Comparison(
        "P5", "gets/s", samples["direct"], samples.get("redis", []), "redis.asyncio", detail, unavailable()
    )
    return Findings([comparison], [Figure("64 gets in flight through the proxy", "gets/s", samples["proxy"])])


async def _rounds_in_flight(sizes: Sizes, proxy: tuple[str, int], port: int) -> Samples:
    keys = _keys(sizes)
    direct = await AsyncQueryableStateClient.connect(*proxy, direct=True)
    proxied = await AsyncQueryableStateClient.connect(*proxy)
    redis = optional("redis.asyncio").Redis(host=LOOPBACK, port=port) if port else None
    gets: dict[str, Callable[[str], Any]] = {"direct": _value_from(direct), "proxy": _value_from(proxied)}
    if redis:
        gets["redis"] = redis.get
    samples: Samples = {name: [] for name in gets}
    try:
        for number in range(sizes.get_rounds + 1):
            for name, get in gets.items():
                sample = (await in_flight(get, keys, IN_FLIGHT, sizes.in_flight_s)).calls_per_s
                if number:
                    samples[name].append(sample)
    finally:
        await direct.close()
        await proxied.close()
        if redis:
            await redis.aclose()
    return samples


def _value_from(client: AsyncQueryableStateClient) -> Callable[[str], Coroutine[Any, Any, Any]]:
    async def get(key: str) -> Any:
        view = await client.get(JOB, STATE, key)
        return view.value()

    return get


def _many_gets(sizes: Sizes, proxy: tuple[str, int], port: int) -> Findings:
    chooser = random.Random(6)
    chunks = cycle([chooser.sample(list(islice(_keys(sizes), sizes.held_keys)), KEYS_PER_GET_MANY) for _ in range(50)])
    with ExitStack() as stack:
        client = stack.enter_context(QueryableStateClient(*proxy, direct=True))
        calls: dict[str, Callable[[Sequence[str]], Any]] = {
            "views": lambda keys: client.get_many(JOB, STATE, keys),
            "values": lambda keys: {key: view.value() for key, view in client.get_many(JOB, STATE, keys).items()},
        }
        if port:
            mget = stack.enter_context(closing(optional("redis").Redis(LOOPBACK, port))).mget
            calls["redis bytes"] = mget
            calls["redis values"] = lambda keys: dict(zip(keys, map(float, mget(keys)), strict=True))
        contenders = {name: _keys_per_s(call, chunks, sizes.get_many_a_round) for name, call in calls.items()}
        samples = interleaved(contenders, rounds=sizes.get_many_rounds)
    comparison = Comparison(
        "P6", "keys/s", samples["views"], samples.get("redis bytes", []), "Redis MGET", "", unavailable()
    )
    decoded = [name for name in ("values", "redis values") if name in samples]
    figures = [Figure(f"get_many of 100, decoded: {name}", "keys/s", samples[name]) for name in decoded]
    return Findings([comparison], figures)


def _keys_per_s(call: Callable[[Sequence[str]], Any], chunks: Any, count: int) -> Callable[[], float]:
    return lambda: KEYS_PER_GET_MANY / (percentile(durations_us(call, islice(chunks, count)), 50) / 1e6)


def _keys(sizes: Sizes) -> Any:
    """All keys in a random order, forever."""
    keys = [f"key-{i}" for i in range(sizes.held_keys)]
    random.Random(4).shuffle(keys)
    return cycle(keys)
