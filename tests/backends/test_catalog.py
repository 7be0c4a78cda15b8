"""Choosing a backend by name, with options from Python or from Spark conf."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from qstate.backends import HeapBackend, backend_class, backend_names, catalog, check_backend, open_backend
from qstate.errors import ConfigError, InstallationError
from tests.backends.factories import ALL_GROUPS, MAX_PARALLELISM
from tests.backends.states import VALUE


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What installing a package with these entry points does."""
    found = EntryPoints(
        EntryPoint(name, value, catalog.ENTRY_POINT_GROUP)
        for name, value in {
            "memory": "tests.backends.factories:MemoryBackend",
            "broken": "tests.backends.no_such_module:Backend",
            "a function": "tests.backends.factories:open_named",
        }.items()
    )
    monkeypatch.setattr(catalog, "entry_points", lambda group: found.select(group=group))


@pytest.mark.parametrize("name", ["heap", "rocksdb", "memory"])
def test_a_backend_is_opened_by_name(registered: None, name: str, tmp_path: Path) -> None:
    with open_backend(name, key_groups=ALL_GROUPS, max_parallelism=MAX_PARALLELISM, directory=tmp_path) as backend:
        assert backend.name == name
        backend.table(VALUE).put("k", 1)
        assert backend.table(VALUE).get("k") == 1


def test_an_unknown_name_is_refused_with_the_valid_ones(registered: None) -> None:
    assert backend_names() == ["a function", "broken", "heap", "memory", "rocksdb"]
    with pytest.raises(ConfigError, match=r"'rocks'; did you mean 'rocksdb'\? .*broken, heap, memory, rocksdb"):
        check_backend("rocks")


def test_an_unknown_option_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'rocksdb'.*'compresion'; did you mean 'compression'\? .*cache_entries"):
        check_backend("rocksdb", {"compresion": "lz4"})
    with pytest.raises(ConfigError, match="Valid are: none"):
        check_backend("heap", {"cache_entries": 1})


def test_options_are_complete_and_of_their_type() -> None:
    checked = check_backend("rocksdb", {"cache_entries": " 7 ", "flush_interval_s": 1, "compression": "zstd"})
    assert checked.keys() == backend_class("rocksdb").options.keys()
    assert (checked["cache_entries"], checked["compression"]) == (7, "zstd")
    assert type(checked["flush_interval_s"]) is float
    assert check_backend("rocksdb", {"flush_interval_s": "0.25"})["flush_interval_s"] == 0.25


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cache_entries", 0),
        ("cache_entries", "many"),
        ("cache_entries", True),
        ("cache_entries", 1.5),
        ("flush_interval_s", "nan"),
        ("flush_interval_s", -1.0),
        ("compression", "gzip"),
        ("compression", None),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_the_name_of_its_option(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        check_backend("rocksdb", {option: value})


def test_a_registered_backend_that_is_none_is_refused(registered: None) -> None:
    with pytest.raises(InstallationError, match=r"'broken'.*no_such_module"):
        check_backend("broken")
    with pytest.raises(ConfigError, match="not a StateBackend"):
        check_backend("a function")


def test_without_rocksdict_heap_works_and_rocksdb_says_what_to_install() -> None:
    program = """
import sys
sys.modules["rocksdict"] = None
from qstate.backends import check_backend
from qstate.errors import InstallationError
check_backend("heap")
try:
    check_backend("rocksdb")
except InstallationError as exc:
    print(exc)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "pip install 'spark-qstate[rocksdb]'" in ended.stdout


def test_importing_the_backends_does_not_import_rocksdict() -> None:
    program = "import sys, qstate.backends; sys.exit('rocksdict' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_heap_has_no_options() -> None:
    assert check_backend("heap") == {}
    assert backend_class("heap") is HeapBackend
