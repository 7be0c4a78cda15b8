"""The pytest plugin, for the suite's own runs and for any other pytest run that names it.

    pytest -p qstate_conformance.plugin --conformance-backend heap --pyargs qstate_conformance.backend

Rules of this module: it is the only one that speaks pytest. It collects the laws (`laws_*.py`), gives them their
subject, and reports what happened to the recording. `outcomes` decides what a verdict means.

A run of the suite itself (`run`) registers a `Session`; in any other pytest run the options below make one. Tests
that are no laws are left alone: they see neither the suite's hypothesis profile nor its seed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import qstate_conformance
from qstate_conformance import profiles, subjects
from qstate_conformance.differences import labelled
from qstate_conformance.failures import failure_message
from qstate_conformance.laws import AREAS, Law, find_laws, forget_laws, is_laws_module, law_of, laws_of
from qstate_conformance.plan import Plan
from qstate_conformance.recording import Recording
from qstate_conformance.reports.directory import write_reports
from qstate_conformance.reports.text import summarize
from qstate_conformance.waivers import WaiverError, read_waivers

__all__ = ["LawsModule", "Session"]

PACKAGE = Path(qstate_conformance.__file__).parent


class Session:
    """The recordings of one pytest run, by area. `own` when the suite runs itself and reports on its own."""

    def __init__(self, recordings: Mapping[str, Recording], *, own: bool, reports: Path | None = None) -> None:
        self.recordings = recordings
        self.own = own
        self.reports = reports
        self.in_a_law = False


class LawsModule(pytest.Module):
    """A module of laws. It is imported by its name, whatever import mode the run has, under the run's profile."""

    def _getobj(self) -> Any:
        recording = recording_of(self)
        with profiles.active(recording.plan.profile, recording.plan.seed):
            module = import_module(f"{qstate_conformance.__name__}.{self.path.parent.name}.{self.path.stem}")
            laws_of(module)  # raises for a test that is no law
        return module

    def istestfunction(self, obj: object, name: str) -> bool:
        return name.startswith("test_")

    def istestclass(self, obj: object, name: str) -> bool:
        return False


_SESSION = pytest.StashKey[Session]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("qstate conformance")
    group.addoption("--conformance-backend", metavar="NAME", help="a backend's name, or module:factory")
    group.addoption("--conformance-server", metavar="HOST:PORT", help="a server that was loaded with the fixture")
    group.addoption("--conformance-client", metavar="COMMAND", help="the command that starts a client's driver")
    group.addoption(
        "--conformance-option", metavar="NAME=VALUE", action="append", default=[], help="an option of the backend"
    )
    group.addoption("--conformance-token-file", metavar="FILE", help="holds the token that the server wants")
    group.addoption(
        "--conformance-select", metavar="LAW", action="append", default=[], help="a law's id, a glob, or a MUST's id"
    )
    group.addoption("--conformance-profile", choices=list(profiles.PROFILES), default=profiles.DEFAULT_PROFILE)
    group.addoption("--conformance-seed", type=int, default=0)
    group.addoption("--conformance-waivers", metavar="FILE", help="laws that need not hold, with reasons (TOML)")
    group.addoption("--conformance-report", metavar="DIR", help="where the reports go")


def pytest_configure(config: pytest.Config) -> None:
    given = [plugin for plugin in config.pluginmanager.get_plugins() if isinstance(plugin, Session)]
    config.stash[_SESSION] = given[0] if given else _session_of(config)
    forget_laws()
    # The laws are tests, so their assertions shall speak; so shall those of the machines and peers beside them. What
    # has been imported already cannot be changed any more, and pytest would warn.
    names = [
        f"{qstate_conformance.__name__}.{area}.{found.name}"
        for area in AREAS
        for found in iter_modules([str(PACKAGE / area)])
    ]
    pytest.register_assert_rewrite(*(name for name in names if name not in sys.modules))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Of the suite's files, laws alone hold tests, whatever pytest is configured to collect."""
    inside = collection_path.suffix == ".py" and PACKAGE in collection_path.parents
    return True if inside and not _holds_laws(collection_path) else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if not _holds_laws(file_path) or _is_collected_anyway(file_path, parent):
        return None
    module: pytest.Module = LawsModule.from_parent(parent, path=file_path)
    return module


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if not _holds_laws(module_path):
        return None
    module: pytest.Module = LawsModule.from_parent(parent, path=module_path)
    return module


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.failed and isinstance(collector, LawsModule):
        recording_of(collector).problem(
            f"the laws in {collector.path.name} cannot be collected:\n{report.longreprtext}"
        )
    return report


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest) -> Any:
    """The subject of the laws of an area."""
    return request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.definition.getparent(LawsModule)
    if module is not None and "subject" in metafunc.fixturenames:
        found = recording_of(module).plan.subject
        metafunc.parametrize("subject", [pytest.param(found, id=found.name)], indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    laws = {item: law for item in items if (law := law_of_item(item)) is not None}
    meant: set[str] = set()
    for area, recording in config.stash[_SESSION].recordings.items():
        cases = [law for law in laws.values() if law.area == area]
        of_area = recording.expect(cases, _known(recording, cases))
        if of_area and (why := _unusable(recording.plan.subject)):
            recording.unusable = why
            if not config.stash[_SESSION].own:
                raise pytest.UsageError(why)
            continue
        meant |= of_area
    dropped = [item for item, law in laws.items() if law.id not in meant]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in laws or laws[item].id in meant]


def _unusable(subject: subjects.Subject) -> str:
    """Why no law can run against the subject: a client's program that does not start. The laws still run with it."""
    if not isinstance(subject, subjects.ClientSubject):
        return ""
    driver = import_module(f"{qstate_conformance.__name__}.client.driver")  # whose assertions speak: see above
    try:
        with driver.driver_for(subject.command):
            return ""
    except driver.DriverFailure as exc:
        return str(exc)


def _known(recording: Recording, cases: Sequence[Law]) -> set[str]:
    """The ids of all laws of the area. Those of a module that cannot be imported are a problem already."""
    try:
        return {law.id for law in find_laws(recording.plan.area)}
    except Exception:
        return {law.id for law in cases}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    law = law_of_item(item)
    if law is None:
        return (yield)
    session, recording = item.config.stash[_SESSION], recording_of(item)
    recording.begins(law)
    session.in_a_law = True
    try:
        with profiles.active(recording.plan.profile, recording.plan.seed):
            result = yield
    finally:
        session.in_a_law = False
    recording.ends(law)
    if recording.enough_failed():
        item.session.shouldfail = f"stopped after {recording.plan.maxfail} laws that failed"
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_assertrepr_compare(config: pytest.Config, op: str, left: object, right: object) -> list[str] | None:
    """In a law, what is compared is what was found, and then what was expected."""
    if op not in ("==", "is") or not config.stash[_SESSION].in_a_law:
        return None
    return [f"found {op} expected", *labelled(left, right)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    law = law_of_item(item)
    if law is not None and (reason := recording_of(item).inapplicable(law)) is not None:
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    law = law_of_item(item)
    if law is not None:
        _record(item, law, call, report)
    return report


def _record(item: pytest.Item, law: Law, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Record the outcome, and show in pytest's own report what a waiver makes of a failure."""
    recording, seconds = recording_of(item), report.duration
    if report.skipped:
        recording.skipped(law, seconds, str(call.excinfo.value) if call.excinfo is not None else "")
    elif report.failed and call.excinfo is not None:
        message = "\n".join([*_case_of(item), failure_message(call.excinfo.value)])
        recording.failed(law, seconds, message, report.longreprtext)
        report.sections.append(("To run this law alone", recording.plan.command(law.id)))
        if (reason := recording.waiver(law)) is not None:
            report.outcome, report.wasxfail = "skipped", f"waived: {reason}"
    elif report.when == "call":
        recording.passed(law, seconds)


def _case_of(item: pytest.Item) -> list[str]:
    """What a parametrized law was run with, beside the subject."""
    callspec = getattr(item, "callspec", None)
    given = {name: value for name, value in callspec.params.items() if name != "subject"} if callspec else {}
    return [f"with {', '.join(f'{name}={value!r}' for name, value in given.items())}"] if given else []


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    found = session.config.stash[_SESSION]
    for recording in found.recordings.values():
        recording.interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        recording.stopped = bool(session.shouldfail or session.shouldstop)
    if found.own:
        return
    outcomes = [recording.outcome() for recording in found.recordings.values()]
    if found.reports is not None:
        write_reports(outcomes, found.reports)
    if any(outcome.problems for outcome in outcomes) and not session.testsfailed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash[_SESSION]
    for recording in () if found.own else found.recordings.values():
        outcome = recording.outcome()
        terminalreporter.section(f"conformance of {outcome.run.subject}")
        terminalreporter.write_line(summarize(outcome))


def law_of_item(item: pytest.Item) -> Law | None:
    """The law that an item is, if it is one."""
    if not isinstance(item, pytest.Function) or item.getparent(LawsModule) is None:
        return None
    return law_of(item.obj)


def recording_of(node: pytest.Collector | pytest.Item) -> Recording:
    """The recording of the law's area."""
    area = node.path.parent.name
    found = node.config.stash[_SESSION].recordings.get(area)
    if found is None:
        raise pytest.UsageError(f"the laws of the {area} area need a subject: say --conformance-{area}")
    return found


def _holds_laws(path: Path) -> bool:
    return (
        path.suffix == ".py"
        and path.parent.parent == PACKAGE
        and is_laws_module(f"qstate_conformance.{path.parent.name}.{path.stem}")
    )


def _is_collected_anyway(path: Path, parent: pytest.Collector) -> bool:
    """Whether pytest itself takes the file for tests, and so asks for its module."""
    patterns = parent.config.getini("python_files")
    return parent.session.isinitpath(path) or any(fnmatch(path.name, pattern) for pattern in patterns)


def _session_of(config: pytest.Config) -> Session:
    """The subjects that the options name. A wrong option is a usage error."""
    option = config.option
    try:
        waivers = read_waivers(Path(option.conformance_waivers)) if option.conformance_waivers else ()
        plans = [
            Plan(
                subject,
                tuple(option.conformance_select),
                option.conformance_profile,
                option.conformance_seed,
                waivers,
                arguments,
            )
            for subject, arguments in _subjects(option)
        ]
    except (subjects.SubjectError, WaiverError) as exc:
        raise pytest.UsageError(str(exc)) from exc
    reports = Path(option.conformance_report) if option.conformance_report else None
    return Session({plan.area: Recording(plan) for plan in plans}, own=False, reports=reports)


def _subjects(option: Any) -> Iterator[tuple[subjects.Subject, tuple[str, ...]]]:
    """The subjects, each with the arguments of the suite's own command that say the same."""
    if option.conformance_backend:
        options = subjects.parse_options(option.conformance_option)
        arguments = tuple(word for pair in option.conformance_option for word in ("--option", pair))
        yield subjects.backend_subject(option.conformance_backend, options), arguments
    if option.conformance_server:
        path = option.conformance_token_file
        token = subjects.read_token(Path(path)) if path else None
        yield subjects.server_subject(option.conformance_server, token), ("--token-file", path) if path else ()
    if option.conformance_client:
        yield subjects.client_subject(shlex.split(option.conformance_client)), ()
