"""What a type checker sees of typed results: mypy, strict, over a program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("typed_program.py")
KEY = r"\w+(?:\.\w+)*(?: \| \w+(?:\.\w+)*)* \| tuple\[.*?, \.\.\.\]"


def test_mypy_sees_the_types_of_views_and_values(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", str(PROGRAM)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=PROGRAM.parents[2])
    found = [re.sub(r"qstate\.[\w.]*\.|typed_program\.", "", one) for one in answer.stdout.splitlines()]
    found = [re.sub(rf"dict\[{KEY},", "dict[Key,", one) for one in found]
    revealed = [one.partition('Revealed type is "')[2].rstrip('"') for one in found if "Revealed" in one]
    assert revealed == [
        "StateHandle[ReadOnlyValueState[Reading]]",
        "float",
        "ReadOnlyValueState[Reading] | None",
        "dict[Key, ReadOnlyValueState[Reading] | None]",
        "dict[Key, ReadOnlyValueState[Reading] | QueryError | None]",
        "list[Reading]",
        "ReadOnlyList[float]",
        "tuple[tuple[str, int], ...]",
        "StateHandle[Any]",
        "ReadOnlyValueState[float] | None",
        "list[ReadOnlyValueState[float]]",
    ], answer.stdout + answer.stderr
    (error,) = [one.partition("error: ")[2] for one in found if "error:" in one]
    assert error == '"float" has no attribute "temperature"  [attr-defined]'
