"""Everything by which programs, people and other implementations know qstate: what a release must not lose silently.

One line each: names of public modules with the members of their classes, settings, arguments of commands, requests of
the REST API with their parameters, options of the data source, failure codes, messages and formats of checkpoints.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module

from qstate.checkpoint import manifest
from qstate.checkpoint.log.file_facts import FORMAT, PARTIAL_FORMAT
from qstate.cli import main as cli
from qstate.config import option_table
from qstate.errors import FailureCode
from qstate.gateway.openapi import document
from qstate.protocol.messages import FORMS
from qstate.spark.data_source.options import SourceOptions
from tests.project.command_line_reference import commands
from tests.project.documentation import Page

__all__ = ["COMPATIBILITY", "levels", "public_modules", "public_names"]

COMPATIBILITY = Page("docs/reference/compatibility.md")


def levels() -> dict[str, str]:
    """The level of each interface, by its text on the page of compatibility."""
    section = COMPATIBILITY.text.partition("## Stability of the interfaces")[2]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    return {row[0].strip(): row[1].strip() for row in rows}


def public_modules() -> dict[str, str]:
    """The level of each module that the page names."""
    return {name: level for text, level in levels().items() for name in re.findall(r"`(qstate[\w.]*)`", text)}


def public_names() -> list[str]:
    """The lines, sorted."""
    return sorted({*_of_python(), *_of_the_command_line(), *_of_rest(), *_of_other_interfaces()})


def _of_python() -> Iterator[str]:
    for name in public_modules():
        module = import_module(name)
        for export in module.__all__:
            yield f"python {name}.{export}"
            thing = getattr(module, export)
            if inspect.isclass(thing) and thing.__module__.startswith("qstate"):
                yield from (f"python {name}.{export}.{member}" for member in dir(thing) if _is_own(thing, member))


def _is_own(thing: type, member: str) -> bool:
    """Whether a class of qstate, and not one of Python, gives it this member."""
    owners = [one for one in thing.__mro__ if member in vars(one)]
    return not member.startswith("_") and any(one.__module__.startswith("qstate") for one in owners)


def _of_the_command_line() -> Iterator[str]:
    for command, _ in commands(cli._parser()):
        for action in command._actions:
            for form in action.option_strings or [action.dest.upper()]:
                yield f"command {command.prog} {form}"


def _of_rest() -> Iterator[str]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield f"REST {method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                yield f"REST {method.upper()} {path} {parameter['name']}"


def _of_other_interfaces() -> Iterator[str]:
    yield from (f"setting {name}" for name, *_ in option_table())
    yield from (f"data source {option.name}" for option in fields(SourceOptions))
    yield from (f"failure {code.value} {code.name}" for code in FailureCode)
    yield from (f"message {form.number} {form.message.__name__}" for form in FORMS)
    yield from (f"checkpoint format {number}" for number in (manifest.FORMAT, FORMAT, PARTIAL_FORMAT))
