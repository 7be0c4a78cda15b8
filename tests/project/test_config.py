"""The job config: every setting is checked by its type, in Python and as text of the Spark conf."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qstate.config import SPARK_PREFIX, JobConfig, option_table
from qstate.errors import ConfigError
from qstate.protocol.limits import MAX_FRAME_LIMIT, MIN_MAX_FRAME, Limits

OPTIONS = {name: (key, default) for name, key, default, _ in option_table()}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_setting_takes_its_default_in_python_and_as_text(name: str) -> None:
    key, default = OPTIONS[name]
    for config in (JobConfig(**{name: default}), JobConfig.from_spark({key: str(default)})):
        assert getattr(config, name) == default
        assert type(getattr(config, name)) is type(default)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("value", ["no", None, [], {}, b"1", math.nan, math.inf, 1.5, 3, True], ids=repr)
def test_every_setting_is_of_its_type_or_refused_by_name(name: str, value: Any) -> None:
    kind = type(OPTIONS[name][1])
    fits = {
        bool: value is True,
        int: value == 3 and value is not True,
        float: value in (1.5, 3) and value is not True,
        str: value == "no",
    }[kind]
    if name.endswith("_ports"):
        fits = value == 3 and value is not True
    try:
        found = getattr(JobConfig(**{name: value}), name)
    except ConfigError as exc:
        assert not fits or name in ("checkpoint_compression", "log_format", "max_frame_bytes", "parallelism")
        assert str(exc).startswith(name)
    else:
        assert fits
        assert type(found) is kind


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"parallelism": "two"}, "parallelism must be an integer, got 'two'"),
        ({"exactly_once": "no"}, "exactly_once must be true or false, got 'no'"),
        ({"exactly_once": 0}, "exactly_once must be true or false, got 0"),
        ({"lease_s": "soon"}, "lease_s must be a number, got 'soon'"),
        ({"proxy_ports": None}, r"proxy_ports: ports are text such as .* got None"),
        ({"lease_s": math.inf}, "lease_s must be a number, and finite, got inf"),
        ({"backend_options": ["a"]}, r"backend_options must be a map from names to values, got \['a'\]"),
        ({"checkpoint_storage_options": "key=secret"}, "checkpoint_storage_options must be .* a value of type str$"),
        ({"auth_token": b"secret"}, "auth_token must be text, got a value of type bytes$"),
        ({"backend_options": {1: "a"}}, "backend_options must be a map from names to values"),
        ({"max_frame_bytes": 10}, "max_frame_bytes must be 4096 to 268435455, got 10$"),
        ({"max_frame_bytes": MIN_MAX_FRAME - 1}, "max_frame_bytes must be 4096 to 268435455, got 4095$"),
        ({"max_frame_bytes": MAX_FRAME_LIMIT + 1}, "max_frame_bytes must be 4096 to .*, got 268435456$"),
        ({"max_frame_bytes": -1}, "max_frame_bytes must be 4096 to"),
    ],
)
def test_a_value_of_another_type_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JobConfig.from_spark({}, **setting)
    with pytest.raises(ConfigError, match=message):
        JobConfig(**setting)


@pytest.mark.parametrize(
    ("option", "text"), [("exactly.once", "no"), ("parallelism", "two"), ("lease.s", "nan"), ("slots", "1.0")]
)
def test_text_of_the_spark_conf_that_means_no_value_is_named_by_its_key(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"{SPARK_PREFIX}{option} must be .*, got {text!r}"):
        JobConfig.from_spark({SPARK_PREFIX + option: text})


def test_text_and_numbers_of_other_kinds_that_mean_a_value_are_that_value() -> None:
    config = JobConfig(parallelism="2", exactly_once="False", lease_s=np.float32(2), slots=np.int64(3))
    assert (config.parallelism, config.exactly_once, config.lease_s, config.slots) == (2, False, 2.0, 3)
    assert [type(value) for value in (config.parallelism, config.lease_s, config.slots)] == [int, float, int]
    assert config.merged(slots="4").slots == 4


@pytest.mark.parametrize("name", ["checkpoint_dir", "restore_from", "log_dir"])
def test_places_may_be_paths(name: str) -> None:
    assert getattr(JobConfig(**{name: Path("/shared/state")}), name) == "/shared/state"


@pytest.mark.parametrize("size", [MIN_MAX_FRAME, MAX_FRAME_LIMIT])
def test_a_largest_frame_that_a_server_can_announce_is_taken(size: int) -> None:
    assert Limits(max_frame=JobConfig(max_frame_bytes=size).max_frame_bytes).max_frame == size


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("bogus", r"unknown setting 'bogus'\. Valid are: access_file, "),
        ("paralelism", r"unknown setting 'paralelism'; did you mean 'parallelism'\? Valid are: access_file, "),
    ],
)
def test_message_about_an_unknown_setting_is_in_sentences(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        JobConfig.from_spark({}, **{name: 1})
    with pytest.raises(ConfigError, match=says):
        JobConfig().merged(**{name: 1})
