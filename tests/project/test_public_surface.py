"""What `import qstate...` promises: exports that exist, a core that stays light."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import qstate

PACKAGE = Path(qstate.__file__).parent
#: Everything that only an extra brings.
OPTIONAL = (
    "cryptography",
    "fsspec",
    "matplotlib",
    "numpy",
    "pandas",
    "prompt_toolkit",
    "psutil",
    "py4j",
    "pyarrow",
    "pyspark",
    "rich",
    "rocksdict",
    "starlette",
    "uvicorn",
    "websockets",
)
#: The packages of the core: a client, a third-party backend or a checkpoint tool imports these.
CORE = [
    "qstate",
    "qstate.backends",
    "qstate.backends.contract",
    "qstate.checkpoint",
    "qstate.cli.main",
    "qstate.config",
    "qstate.descriptors",
    "qstate.errors",
    "qstate.installation",
    "qstate.keys",
    "qstate.protocol.connection",
    "qstate.runtime.serving",
    "qstate.serializers",
]
MODULES = sorted(module.name for module in pkgutil.walk_packages([str(PACKAGE)], "qstate."))
BLOCKED_IMPORT = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None  # makes `import name` raise ModuleNotFoundError
import importlib
for name in {modules!r}:
    importlib.import_module(name)
"""


@pytest.mark.parametrize("name", ["qstate", *MODULES])
def test_all_names_exist_are_sorted_and_documented(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    code = ast.parse(Path(str(module.__file__)).read_text()).body
    if len(code) <= bool(module.__doc__):  # a folder of modules
        assert exported is None
        return
    assert exported is not None, f"{name} has no __all__"
    assert len(set(exported)) == len(exported)
    for export in exported:
        thing = getattr(module, export)
        own_class = isinstance(thing, type) and thing.__module__ == name
        assert not own_class or thing.__doc__, f"{name}.{export} has no docstring"
    assert module.__doc__, f"{name} does not open with its rules"


def test_core_imports_without_any_optional_package() -> None:
    code = BLOCKED_IMPORT.format(blocked=OPTIONAL, modules=CORE)
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr


def test_blocked_import_really_blocks() -> None:
    code = BLOCKED_IMPORT.format(blocked=OPTIONAL, modules=["rocksdict"])
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ModuleNotFoundError" in answer.stderr


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "psutil"])
def test_the_spark_edge_without_its_packages_says_how_to_get_them(package: str) -> None:
    caught = "try:\n    import qstate.spark\nexcept ImportError as exc:\n    print(f'{type(exc).__name__}: {exc}')"
    code = BLOCKED_IMPORT.format(blocked=[package], modules=[]) + caught
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert answer.stdout == (
        f"InstallationError: qstate.spark needs {package}, which is not installed; to do: "
        'pip install "spark-qstate[spark]"\n'
    ), answer.stderr


def test_an_import_that_fails_for_another_reason_is_not_blamed_on_the_installation() -> None:
    code = BLOCKED_IMPORT.format(blocked=["qstate.runtime.relay.relay"], modules=["qstate.spark"])
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ModuleNotFoundError: import of qstate.runtime.relay.relay halted" in answer.stderr
    assert "InstallationError" not in answer.stderr


def test_importing_qstate_imports_nothing_else_until_a_name_is_used() -> None:
    code = (
        "import sys, qstate\n"
        "assert not [name for name in sys.modules if name.startswith('qstate.')]\n"
        "assert qstate.QueryError.__module__ == 'qstate.errors'\n"
        "assert 'qstate.runtime' not in sys.modules\n"
        "assert set(qstate.__all__) <= set(dir(qstate))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    with pytest.raises(AttributeError, match="no attribute 'Job'"):
        qstate.Job  # noqa: B018


def test_type_checkers_see_the_names_that_are_imported_when_they_are_used() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    (names,) = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert names == qstate.__all__
