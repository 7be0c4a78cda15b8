"""The user's code in an error: its frames and lines, without those of qstate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import qstate
from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import CheckpointError, JobError, SerializationError
from qstate.operators.user_traceback import MOST_SHOWN, shortened, user_traceback, with_user_traceback
from tests.operators.running import Calls, batch, opened


def failure_of(each: Any, opening: Any = lambda function, context: None) -> JobError:
    with opened(Calls(each, opening)) as operator, pytest.raises(JobError) as caught:
        operator.process(batch([("a", 1.5, 1)]))
    return caught.value


def divide(function: Any, row: Any, context: Any) -> Any:
    return row.temp / 0  # the line that is shown


def test_the_users_frames_and_lines_are_shown_and_none_of_qstate() -> None:
    found = user_traceback(failure_of(divide))
    assert found.startswith("Traceback (most recent call last):\n  File ")
    assert found.endswith("ZeroDivisionError: float division by zero")
    assert "in divide\n    return row.temp / 0  # the line that is shown" in found
    assert "qstate/operators/operator.py" not in found


def test_code_of_the_users_below_a_state_handle_is_shown_without_the_handle() -> None:
    def reduce(old: Any, new: Any) -> Any:
        return old[new]

    def opening(function: Any, context: Any) -> None:
        function.state = context.get_reducing_state(ReducingStateDescriptor("r", float, reduce_function=reduce))

    def each(function: Any, row: Any, context: Any) -> None:
        function.state.add(row.temp)
        function.state.add(row.temp)

    found = user_traceback(failure_of(each, opening))
    assert [line.strip() for line in found.splitlines() if " in " in line and "File" in line] != []
    assert "in each" in found and "in reduce" in found and "return old[new]" in found
    assert "handles.py" not in found


def test_qstate_error_shows_where_the_user_made_the_call() -> None:
    def opening(function: Any, context: Any) -> None:
        function.state = context.get_reducing_state(ReducingStateDescriptor("r", float, reduce_function=max))

    found = user_traceback(failure_of(lambda function, row, context: function.state.add(None), opening))
    assert "function.state.add(None)" in found
    assert found.endswith("JobError: state 'r': add() got None, which is not a value")


def test_what_the_user_caught_before_is_shown_as_python_does() -> None:
    def each(function: Any, row: Any, context: Any) -> None:
        try:
            json.loads("{")
        except ValueError as exc:
            raise RuntimeError("the rule cannot be read") from exc

    found = user_traceback(failure_of(each))
    assert "json.loads" in found and "JSONDecodeError" in found
    assert "The above exception was the direct cause" in found
    assert found.endswith("RuntimeError: the rule cannot be read")


def test_qstate_error_without_user_frames_stays_unchanged() -> None:
    error = JobError("column 'key' is null")
    assert with_user_traceback(error) is error
    code = compile("open('/nowhere/at/all')", f"{Path(qstate.__file__).parent}/runtime/launch.py", "exec")
    try:
        exec(code)
    except OSError as exc:
        assert exc.__traceback__ is not None
        error.__cause__ = exc.with_traceback(exc.__traceback__.tb_next)
    assert with_user_traceback(error) is error


def test_storage_failure_has_no_user_traceback() -> None:
    error = CheckpointError("cannot write")
    error.__cause__ = failure_of(divide)
    assert user_traceback(error) == ""


def test_traceback_of_endless_recursion_is_cut_in_the_middle() -> None:
    def down(depth: int) -> int:
        return up(depth + 1) + 1

    def up(depth: int) -> int:
        return down(depth + 1) + 1

    found = user_traceback(failure_of(lambda function, row, context: [down(0)]))
    assert len(found) < MOST_SHOWN + 200
    assert found.startswith("Traceback (most recent call last):")
    assert "characters are left out; the task manager's log has them" in found
    assert found.endswith("RecursionError: maximum recursion depth exceeded")


def test_an_exception_without_a_text_or_with_an_endless_one_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no text")

    def mute(function: Any, row: Any, context: Any) -> None:
        raise Mute

    error = failure_of(mute)
    assert str(error).endswith("key 'a': Mute: (its __str__ failed: KeyError)")
    assert "in mute" in user_traceback(error)

    def loud(function: Any, row: Any, context: Any) -> None:
        raise ValueError("x" * 1_000_000)

    error = failure_of(loud)
    assert len(str(error)) < 3_000
    assert len(str(with_user_traceback(error))) < 3_000 + MOST_SHOWN + 200


def test_error_keeps_its_class_and_begins_with_its_own_message() -> None:
    error = failure_of(divide)
    told = with_user_traceback(error)
    assert type(told) is JobError
    assert str(told).startswith(f"{error}\nTraceback (most recent call last):")
    failed = SerializationError("state 's', key 'k'")
    failed.__cause__ = error.__cause__
    assert type(with_user_traceback(failed)) is SerializationError


def test_errors_in_open_show_the_users_traceback_too() -> None:
    def opening(function: Any, context: Any) -> None:
        context.get_state(ValueStateDescriptor("s")).value()

    with pytest.raises(JobError) as caught, opened(Calls(divide, opening)):
        pass
    assert "context.get_state" in user_traceback(caught.value)


def test_short_texts_stay_as_they_are() -> None:
    assert shortened("x" * MOST_SHOWN) == "x" * MOST_SHOWN
