"""What tests of the benchmarks share: `run.py` in a process of its own, and the modules of benchmarks/."""

from __future__ import annotations

import importlib
import json
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def bench(repository: pathlib.Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs benchmarks/run.py with these arguments."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "benchmarks/run.py", *arguments]
        return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=400)

    return run


@pytest.fixture(scope="session")
def benchmark_names(bench: Callable[..., subprocess.CompletedProcess[str]]) -> set[str]:
    return set(bench("--list").stdout.split())


@pytest.fixture
def quick_rows(
    bench: Callable[..., subprocess.CompletedProcess[str]], tmp_path: pathlib.Path
) -> Callable[[str], list[dict[str, Any]]]:
    """Measures tiny sizes of the benchmarks whose name contains this, and returns the rows."""

    def rows(only: str) -> list[dict[str, Any]]:
        output = tmp_path / "report.json"
        done = bench("--quick", "--only", only, "--output", str(output))
        assert done.returncode == 0, done.stderr
        return json.loads(output.read_text())["rows"]

    return rows


@pytest.fixture
def benchmark_module(repository: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], types.ModuleType]:
    """Imports a module of benchmarks/, which is no package: its modules find each other by their bare names."""
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    return importlib.import_module
