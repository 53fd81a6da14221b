"""What every test shares: a quiet environment, fixed seeds, a fresh process, and data that may be absent."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable

import hypothesis
import numpy as np
import pytest

# Before TensorFlow and pygame are imported, and handed on to the processes that tests start.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers fill the cores; a pool of threads in each op of each worker would only get in their way.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

# The same examples in every run, so that a red run is red again. HYPOTHESIS_PROFILE=explore looks for new ones.
_SHARED_SETTINGS = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, print_blob=True, **_SHARED_SETTINGS)
hypothesis.settings.register_profile("explore", max_examples=1000, **_SHARED_SETTINGS)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

# Of whatever draws without a seed of its own.
_SEED = 20


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Sets the seeds of the process anew: no test's draws follow from which others its worker ran before.

    TensorFlow's is part of the seed of every dataset, also of those that have one; TF-Agents' own tests set it, and
    so do some of ours.
    """
    random.seed(_SEED)
    np.random.seed(_SEED)  # noqa: NPY002 (code of others draws from it)
    if "tensorflow" in sys.modules:  # else it has drawn nothing
        sys.modules["tensorflow"].random.set_seed(_SEED)


_ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The folder that holds buffers/, pipelines/ and tests/."""
    return _ROOT


@pytest.fixture(scope="session")
def shared_folder(repository: pathlib.Path) -> pathlib.Path:
    """The folder of recorded datasets beside the repository; tests that want it are skipped where it is absent.

    REPLAYFEED_SHARED names another place.
    """
    if "REPLAYFEED_SHARED" in os.environ:
        folder = pathlib.Path(os.environ["REPLAYFEED_SHARED"]).resolve()
        if not folder.is_dir():
            pytest.fail(f"REPLAYFEED_SHARED names no folder: {folder}")
        return folder
    folder = repository.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared beside the repository, and REPLAYFEED_SHARED is not set")
    return folder


@pytest.fixture(scope="session")
def shared_data(shared_folder: pathlib.Path) -> pathlib.Path:
    """The recorded RLDS datasets, one folder each."""
    folder = shared_folder / "data"
    if not folder.is_dir():
        pytest.skip(f"no recorded datasets: {folder} does not exist")
    return folder


@pytest.fixture
def run_python(tmp_path: pathlib.Path) -> Callable[..., str]:
    """Runs Python code in a fresh process, in an empty folder, and returns what it printed.

    The test fails with the process's own words when it does. The time is only what a test that hangs takes: a busy
    machine needs a minute where a quiet one needs 5 s.
    """

    def run(code: str, *arguments: str, timeout_s: float = 400.0) -> str:
        process = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=timeout_s
        )
        if process.returncode:
            pytest.fail(f"exit code {process.returncode}\n{process.stdout}{process.stderr}", pytrace=False)
        return process.stdout

    return run
