"""The check for leaked threads and processes fails the test that leaks."""

from __future__ import annotations

from pathlib import Path

import pytest

LEAKS_A_THREAD = """
import threading
stop = threading.Event()
def test_leak():
    threading.Thread(target=stop.wait, name="leaked", daemon=True).start()
def test_after():
    stop.set()
"""
LEAKS_A_PROCESS = """
import subprocess, sys
child = []
def test_leak():
    child.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
def test_after():
    child[0].communicate()
"""
CLEANS_UP = """
import subprocess, sys, threading, pytest
@pytest.fixture
def running():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield
    stop.set()
    child.communicate()
def test_with_a_fixture(running):
    pass
"""

pytest_plugins = ["pytester"]


@pytest.fixture
def inner(pytester: pytest.Pytester) -> pytest.Pytester:
    conftest = (Path(__file__).parents[1] / "conftest.py").read_text()
    pytester.makeconftest(conftest.replace("LEFTOVER_GRACE_S = 5.0", "LEFTOVER_GRACE_S = 0.2"))
    return pytester


@pytest.mark.parametrize(("code", "named"), [(LEAKS_A_THREAD, "thread 'leaked'"), (LEAKS_A_PROCESS, "process ")])
def test_leak_fails_the_test_that_leaks_and_no_other(inner: pytest.Pytester, code: str, named: str) -> None:
    inner.makepyfile(code)
    result = inner.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_leak*", f"the test left behind: *{named}*"])


def test_fixture_that_cleans_up_passes(inner: pytest.Pytester) -> None:
    inner.makepyfile(CLEANS_UP)
    inner.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
