"""Static checks of the documentation: it matches the code, and its code blocks are valid."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import qstate.client
import qstate.errors
import qstate.runtime.serving
import qstate.spark
from qstate.backends.byte_stores.rocksdb import RocksDBBackend
from qstate.cli import main as cli
from qstate.config import JobConfig, option_table
from tests.project import command_line_reference, configuration_reference, failure_reference, rest_reference
from tests.project.documentation import ROOT, Page, pages

PAGES = pages()
_MADE = (command_line_reference, configuration_reference, failure_reference, rest_reference)
MADE_PAGES = {module.PAGE: module for module in _MADE}
LANGUAGES = {"bash", "python", "text", "toml", "yaml"}
TROUBLESHOOTING = Page("docs/how-to/troubleshooting.md")
COMMAND_LINE = Page("docs/reference/command-line.md")
CHOOSE = Page("docs/how-to/choose-a-backend.md")
METRICS = Page("docs/reference/metrics.md")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))


@pytest.mark.parametrize("path", MADE_PAGES, ids=lambda path: str(path.name))
def test_generated_pages_match_the_code(path: Path) -> None:
    module = MADE_PAGES[path]
    assert path.read_text() == module.render(), (
        f"run: PYTHONPATH=. python {Path(str(module.__file__)).relative_to(ROOT)}"
    )


@each_page
def test_every_block_says_what_it_is(page: Page) -> None:
    """See `tests.project.documentation`; blocks inside lists are indented, and are not run."""
    assert page.text.count("\n```") == 2 * len(page.blocks), "a fence is open, or is written in another way"
    for block in page.blocks:
        assert block.language in LANGUAGES, f"{page.name}:{block.line} is {block.language!r}, not one of {LANGUAGES}"


@each_page
def test_python_blocks_are_sound_python(page: Page) -> None:
    for block in page.blocks:
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")


@each_page
def test_bash_blocks_are_sound_bash(page: Page) -> None:
    for block in page.blocks:
        if block.language == "bash":
            checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, f"{page.name}:{block.line}: {checked.stderr}"


@each_page
def test_qstate_commands_have_arguments_that_it_takes(page: Page) -> None:
    for block in page.blocks:
        for line in block.text.splitlines() if block.language == "bash" else ():
            if line.startswith("qstate "):
                command = re.split(r" [|>] ", line)[0]
                cli._parser().parse_args(shlex.split(command, comments=True)[1:])


@each_page
def test_settings_exist_and_have_values_that_they_take(page: Page) -> None:
    for key, value in re.findall(r"\b(spark\.qstate\.[a-z_.]*[a-z])(?:=(\S*[^\s.`]))?", page.text):
        option = key.removeprefix("spark.qstate.backend.")
        if option != key:
            assert option in RocksDBBackend.options, f"{page.name}: {key}"
            continue
        if key.startswith("spark.qstate.checkpoint.storage"):  # any option that the store's package has
            continue
        defaults = {conf: str(default).lower() for _, conf, default, _ in option_table()}
        assert key in defaults, f"{page.name}: {key}"
        JobConfig.from_spark({key: value or defaults[key]})


def test_metrics_that_pages_name_exist() -> None:
    """`tests/runtime/job/test_metrics.py` compares the reference with what a job serves."""
    known = set(re.findall(r"^\| `(qstate_\w+)` \|", METRICS.text, re.MULTILINE))
    packages = {"qstate_conformance", "qstate_sqlite"}
    for page in PAGES:
        named = set(re.findall(r"\b(qstate_[a-z_]+?)(?:_bucket)?\b", page.text)) - packages
        assert {name for name in named if not name.startswith("qstate_gateway")} <= known, page.name


def test_every_command_is_explained_in_the_reference() -> None:
    written = COMMAND_LINE.text.partition(command_line_reference.HEAD)[0]
    for command, _ in command_line_reference.commands(cli._parser()):
        assert f"`{command.prog}" in written, command.prog


def test_every_listed_error_exists_and_has_a_remedy() -> None:
    classes = [getattr(qstate.errors, name) for name in qstate.errors.__all__]
    names = {found.__name__ for found in classes if isinstance(found, type) and issubclass(found, Exception)}
    first_cells = re.findall(r"^\| (`[A-Z][^|]*) \|", TROUBLESHOOTING.text, re.MULTILINE)
    told = set(re.findall(r"`([A-Z]\w+)`", " ".join(first_cells)))
    roots = {"QStateError", "QueryError"}
    assert told == names - roots
    assert all(f"`{root}`" in TROUBLESHOOTING.text for root in roots)


def test_the_options_of_rocksdb_are_those_of_the_class() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+?)`? \|", CHOOSE.text.split("## Options")[1], re.MULTILINE))
    assert rows == {name: str(option.default) for name, option in RocksDBBackend.options.items()}


def test_the_python_reference_names_what_exists_and_all_that_is_public() -> None:
    reference = "".join(path.read_text() for path in (ROOT / "docs/reference/python").glob("*.md"))
    named = set(re.findall(r"^::: (\S+)$", reference, re.MULTILINE))
    for name in named:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name
    shown = {name.rpartition(".")[2] for name in named}
    for module in (qstate.client, qstate.runtime.serving, qstate.spark):
        assert set(module.__all__) <= shown


def test_environments_that_the_guide_names_exist() -> None:
    named = set(re.findall(r"tox -e ([a-z0-9]+)", "".join(page.text for page in PAGES)))
    settings = (ROOT / "tox.ini").read_text()
    existing = set(re.findall(r"^\[testenv:(\w+)\]", settings, re.MULTILINE)) | set(
        re.findall(r"\bpy(?:3\d+)?\b", settings)
    )
    assert named <= existing
