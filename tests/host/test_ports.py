"""Laws of the ports that every setting, option and listener takes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from qstate.config import JobConfig
from qstate.errors import ConfigError
from qstate.host.ports import PORTS, Ports, parse_address, parse_ports, ports_text
from qstate.runtime.serving.endpoint import EndpointOptions

TAKEN: list[tuple[Ports, list[int]]] = [
    ("9069", [9069]),
    ("9069, 9100-9102,0", [9069, 9100, 9101, 9102, 0]),
    (" 7 - 9 ", [7, 8, 9]),
    ("0-65535", list(range(65_536))),
    ("000000000000007", [7]),
    (0, [0]),
    (65_535, [65_535]),
    (np.int64(9069), [9069]),
    (range(9100, 9103), [9100, 9101, 9102]),
    (range(9100, 9110, 4), [9100, 9104, 9108]),
    (range(9102, 9099, -1), [9102, 9101, 9100]),
    ([9069], [9069]),
    ((9069, "9100-9101,7", range(3, 5)), [9069, 9100, 9101, 7, 3, 4]),
    ({9069: "the first"}, [9069]),
    (np.arange(7, 9), [7, 8]),
    ({9: "", 8: ""}.keys(), [9, 8]),
]

REFUSED: list[tuple[Any, str]] = [
    ("", "a list of ports and ranges such as '9069,9100-9200', got ''"),
    ("http", "got 'http'"),
    ("9069,", "got '9069,'"),
    ("-1", "got '-1'"),
    ("9100-", "got '9100-'"),
    ("1-2-3", "got '1-2-3'"),
    ("²", "got '²'"),
    ("9102-9100", "ranges ascend, got '9102-9100'"),
    ("80,65536", "0 to 65535 .* got '65536'"),
    ("9" * 5000, "0 to 65535"),
    ("1-" + "9" * 5000, "0 to 65535"),
    (-1, "0 to 65535, got -1"),
    (65_536, "0 to 65535, got 65536"),
    (10**5000, "0 to 65535"),
    (range(65_530, 65_537), r"0 to 65535, got range\(65530, 65537\)"),
    (range(3, -2, -1), r"0 to 65535, got range\(3, -2, -1\)"),
    (range(10**5000), "0 to 65535"),
    (range(9100, 9000), r"an empty range of ports: range\(9100, 9000\)"),
    ([range(0)], r"an empty range of ports: range\(0, 0\)"),
    ([], r"no port, got \[\]"),
    (iter(()), "no port"),
    ([9069, ""], "such as '9069,9100-9200', got ''"),
    ([9069, 65_536], "0 to 65535, got 65536"),
    ([[9069]], r"got \[9069\]"),
    (True, "got True"),
    ([False], "got False"),
    (9069.0, "got 9069.0"),
    (None, "got None"),
    (b"9069", "got b'9069'"),
    ([b"9069"], "got b'9069'"),
    (bytearray(b"9069"), r"got bytearray\(b'9069'\)"),
    (itertools.repeat(9069), "more than 65536 ports"),
    (itertools.count(), "0 to 65535, got 65536"),
    (itertools.repeat("0-65535"), "more than 65536 ports"),
]


@pytest.mark.parametrize(("ports", "expected"), TAKEN, ids=lambda value: type(value).__name__)
def test_ports_are_text_numbers_ranges_and_iterables_of_these_in_order(ports: Ports, expected: list[int]) -> None:
    text = ports_text(ports)
    assert list(itertools.chain(*parse_ports(text))) == expected
    assert ports_text(text) is text


@pytest.mark.parametrize(("ports", "message"), REFUSED, ids=lambda value: type(value).__name__)
def test_everything_else_is_an_error_that_says_what_is_wrong(ports: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse_ports(ports)
    assert len(str(refused.value)) < 300


def test_text_stays_as_it_was_written_and_the_rest_becomes_short_text() -> None:
    assert ports_text(" 9069,9100 - 9200") == " 9069,9100 - 9200"
    assert ports_text([9069, range(9100, 9201), range(3, 8, 2)]) == "9069,9100-9200,3,5,7"


@pytest.mark.parametrize("text", ["[::1]:9069", " ::1:9069"])
def test_address_is_a_host_and_a_port(text: str) -> None:
    assert parse_address("--proxy", text) == ("::1", 9069)


@pytest.mark.parametrize("text", ["", "localhost", ":9069", "h:0", "h:65536", "h:+1", "h:\u0661", "h:" + "9" * 5000])
def test_text_that_is_no_address_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--proxy takes HOST:PORT, as in localhost:9069, got ") as failure:
        parse_address("--proxy", text)
    assert len(str(failure.value)) < 150


def test_an_endless_iterable_is_read_no_further_than_there_are_ports() -> None:
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield 0

    with pytest.raises(ConfigError, match="more than 65536 ports"):
        parse_ports(endless())
    assert read == PORTS + 1


def test_huge_range_of_ports_is_not_expanded() -> None:
    began = time.process_time()
    for ports in (range(10**12), [range(10**18, 10**19)], f"0-{10**12}"):
        with pytest.raises(ConfigError, match="0 to 65535"):
            parse_ports(ports)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("name", ["proxy_ports", "server_ports", "metrics_ports"])
def test_a_job_config_has_the_ports_as_text_and_names_the_setting_that_is_wrong(name: str) -> None:
    assert getattr(JobConfig(**{name: [9069, range(9100, 9103)]}), name) == "9069,9100-9102"
    assert getattr(JobConfig(**{name: 9069}), name) == "9069"
    with pytest.raises(ConfigError, match=f"^{name}: ports are 0 to 65535, got 70000"):
        JobConfig(**{name: 70_000})
    key = f"spark.qstate.{name.replace('_', '.')}"
    with pytest.raises(ConfigError, match=f"^{key}: .*got 'any'"):
        JobConfig.from_spark({key: "any"})
    if name != "metrics_ports":  # there empty means none
        with pytest.raises(ConfigError, match=f"^{name}: "):
            JobConfig(**{name: ""})


def test_the_options_of_a_server_have_the_ports_as_text() -> None:
    assert EndpointOptions(ports=(port for port in (9069, 9070))) == EndpointOptions(ports="9069,9070")
    with pytest.raises(ConfigError, match="0 to 65535, got 70000"):
        EndpointOptions(ports=70_000)
