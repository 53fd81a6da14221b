"""The structure that every file keeps to, and the commands that people call."""

from __future__ import annotations

import ast
import configparser
import doctest
import functools
import importlib
import inspect
import json
import os
import pathlib
import pkgutil
import re
import shutil
import subprocess
import types
from collections.abc import Iterator

import packaging.requirements
import packaging.utils
import pytest

import replayfeed.buffers
import replayfeed.cli
import replayfeed.pipelines

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = (replayfeed.buffers, replayfeed.cli, replayfeed.pipelines)
PACKAGE_FOLDERS = ("buffers", "cli", "pipelines")
CODE_FOLDERS = (*PACKAGE_FOLDERS, "tests", "benchmarks", "colab", ".ci")
# What loads only when a class that uses it is built.
OPTIONAL = ("reverb", "tf_agents", "rlds", "tensorflow_datasets", "gym", "matplotlib")
TOP_LEVEL = {
    *(".ci", ".gitignore", ".pre-commit-config.yaml", "Makefile", "constraints.txt", "pyproject.toml", "setup.cfg"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"),
    *("benchmarks", "buffers", "cli", "colab", "pipelines", "tests"),
}


# -- what the files say ------------------------------------------------------------------------


def source_of(path: pathlib.Path) -> str:
    """Returns a file's Python; of a notebook the code cells without IPython's own lines."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    lines = [line for cell in cells for line in "".join(cell["source"]).splitlines()]
    return "\n".join(line for line in lines if not line.lstrip().startswith(("%", "!")))


@functools.cache
def trees() -> dict[pathlib.Path, ast.Module]:
    """Returns the syntax tree of every Python file and notebook, by path from the repository's root."""
    folders = [ROOT / folder for folder in CODE_FOLDERS]
    files = [path for folder in folders for ending in ("*.py", "*.ipynb") for path in folder.rglob(ending)]
    assert len(files) > 10
    return {path.relative_to(ROOT): ast.parse(source_of(path), str(path)) for path in files}


def absolute_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and full name of each absolute import: `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imports_of(*names: str, folders: tuple[str, ...] = CODE_FOLDERS) -> list[tuple[str, str]]:
    """Returns (file:line, import) of each absolute import of these packages or modules from these folders."""
    return [
        (f"{path}:{line}", imported)
        for path, tree in trees().items()
        if path.parts[0] in folders
        for line, imported in absolute_imports(tree)
        if any(imported == name or imported.startswith(f"{name}.") for name in names)
    ]


def test_no_file_imports_a_second_copy_of_a_package():
    assert imports_of("buffers", "cli", "pipelines") == []


def test_no_file_imports_private_tensorflow():
    assert imports_of("tensorflow.python", "tensorflow.core", "tensorflow.__internal__", "keras.src") == []
    private = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__internal__"
    ]
    assert private == []


def test_relative_imports_stay_inside_their_package():
    upward = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level > 1
    ]
    assert upward == []


def test_arrows_point_one_way():
    assert imports_of("replayfeed.pipelines", "replayfeed.cli", folders=("buffers",)) == []
    assert imports_of("replayfeed.cli", folders=("pipelines",)) == []
    assert imports_of("tests", "benchmarks", "colab") == []


def test_only_the_served_modules_import_reverb():
    places = {place.partition(":")[0] for place, _ in imports_of("reverb", folders=PACKAGE_FOLDERS)}
    served = {"buffers/tables.py", "buffers/server.py"}
    assert {place for place in places - served if not place.startswith("buffers/reverb_")} == set()


def test_nothing_executable_is_read_or_written():
    assert imports_of("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib") == []
    allowing = [
        f"{path}:{node.value.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False"
    ]
    assert allowing == []


def test_no_test_sleeps():
    assert imports_of("time.sleep", "asyncio.sleep", folders=("tests",)) == []
    sleeping = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        if path.parts[0] == "tests"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "sleep"
    ]
    assert sleeping == []


def test_no_module_has_grown_a_second_job():
    # Not a style limit: the largest of the modules that we learned from has 320 lines, those that we did not 1,000.
    modules = [path for path in trees() if path.parts[0] in PACKAGE_FOLDERS]
    num_lines = {str(path): len((ROOT / path).read_text().splitlines()) for path in modules}
    assert {path: lines for path, lines in num_lines.items() if lines > 750} == {}


# -- what is in the repository -----------------------------------------------------------------


@functools.cache
def tracked_files() -> tuple[pathlib.Path, ...]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git clone")
    # A file that is deleted but not yet committed is still listed.
    return tuple(pathlib.Path(name) for name in listing.stdout.split("\0") if name and (ROOT / name).exists())


def test_the_top_level_holds_what_the_readme_tells_of():
    assert {path.parts[0] for path in tracked_files()} - TOP_LEVEL == set()


def test_no_file_is_large():
    sizes = {str(path): (ROOT / path).stat().st_size for path in tracked_files()}
    assert {path: num_bytes for path, num_bytes in sizes.items() if num_bytes > 500_000} == {}


def test_no_file_names_a_folder_of_one_machine():
    personal = re.compile(r"(?<![\w.~/-])/(?:root|home|work|Users)/\w")
    found = []
    for path in tracked_files():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            found += [(str(path), match.group()) for match in personal.finditer(content.decode())]
    assert found == []


# -- how it is installed -----------------------------------------------------------------------


@functools.cache
def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_setup_cfg_lists_every_package():
    folders = {path.parent for path in trees() if path.parts[0] in PACKAGE_FOLDERS and path.name == "__init__.py"}
    expected = {f"replayfeed.{'.'.join(folder.parts)}": str(folder) for folder in folders}
    mapping = dict(re.split(r"\s*=\s*", line) for line in lines_of(setup_cfg()["options"]["package_dir"]))
    assert mapping == expected
    assert sorted(lines_of(setup_cfg()["options"]["packages"])) == sorted(expected)


def requirements() -> list[packaging.requirements.Requirement]:
    """Returns what setup.cfg asks for, extras included, but for the package's own extras."""
    sections = [setup_cfg()["options"]["install_requires"], *setup_cfg()["options.extras_require"].values()]
    asked = [packaging.requirements.Requirement(line) for section in sections for line in lines_of(section)]
    return [requirement for requirement in asked if requirement.name != "replayfeed"]


@pytest.mark.parametrize("python_version", ["3.10", "3.11"])
def test_constraints_pin_one_fitting_version_of_all_that_setup_cfg_asks_for(python_version):
    pins: dict[str, list[str]] = {}
    for line in lines_of((ROOT / "constraints.txt").read_text()):
        pin = packaging.requirements.Requirement(line)
        (specifier,) = pin.specifier
        assert specifier.operator == "==", line
        if pin.marker is None or pin.marker.evaluate({"python_version": python_version}):
            pins.setdefault(packaging.utils.canonicalize_name(pin.name), []).append(specifier.version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
    for requirement in requirements():
        (version,) = pins.get(packaging.utils.canonicalize_name(requirement.name), [None])
        assert version is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement}, pinned to {version}"


def test_importing_loads_nothing_optional(run_python):
    imports = "import sys, replayfeed.buffers, replayfeed.pipelines"
    assert run_python(f"{imports}; print(*(name for name in {OPTIONAL} if name in sys.modules))").split() == []


# -- what people see ---------------------------------------------------------------------------


def public_names(module: types.ModuleType) -> set[str]:
    """Returns the names that a reader of the module finds in it; `annotations` is what `from __future__` leaves."""
    values = vars(module).items()
    return {name for name, value in values if not name.startswith("_") and not inspect.ismodule(value)} - {
        "annotations"
    }


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_all_lists_what_is_importable_in_order(package):
    assert list(package.__all__) == sorted(set(package.__all__))
    assert public_names(package) - set(package.__all__) == set()
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_everything_public_is_documented(package):
    undocumented = []
    for name in package.__all__:
        value = getattr(package, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        # A dataclass without a docstring gets its signature as one.
        if not inspect.getdoc(value) or inspect.getdoc(value).startswith(f"{name}("):
            undocumented.append(name)
        if not inspect.isclass(value) or not value.__module__.startswith("replayfeed."):
            continue
        for member_name, member in inspect.getmembers(value):
            if member_name.startswith("_") or not (inspect.isroutine(member) or isinstance(member, property)):
                continue
            # An override is documented where the contract is.
            owners = [vars(owner) for owner in value.__mro__ if member_name in vars(owner)]
            if not any(inspect.getdoc(owner[member_name]) for owner in owners):
                undocumented.append(f"{name}.{member_name}")
    assert undocumented == []


def modules_of(package: types.ModuleType) -> list[str]:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [package.__name__, *(module.name for module in found if not module.name.endswith(".__main__"))]


@pytest.mark.parametrize("name", [name for package in PACKAGES for name in modules_of(package)])
def test_examples_in_docstrings_give_what_they_show(name):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert results.failed == 0, f"{results.failed} of {results.attempted} examples fail; see the captured output"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_docstrings_have_examples(package):
    # Else the test above would pass by finding nothing to run.
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in modules_of(package)]
    assert any(test.examples for module in modules for test in finder.find(module))


# -- the commands ------------------------------------------------------------------------------


def call(command: list[str], cwd: pathlib.Path, path: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs a command that finds other programs in one folder only."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(command, cwd=cwd, env={**environment, "PATH": str(path)}, capture_output=True, text=True)


def executable(path: pathlib.Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path):
    """A folder with the Makefile, .ci and an empty bin/."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "bin").mkdir()
    return tmp_path


@pytest.mark.parametrize("target", ["run", "test"])
def test_make_says_in_one_sentence_that_there_is_no_python(clone, target):
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt"):
        (clone / name).touch()
    executable(clone / "bin" / "python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    process = call([shutil.which("make"), target], clone, clone / "bin")
    said, failed = process.stderr.splitlines()
    assert process.returncode == 2
    assert failed.startswith("make: ***")
    assert said == (
        "replayfeed needs CPython 3.10 or 3.11 and found none on the PATH; "
        f"install one, or name one: make {target} PYTHON=/path/to/python3.11"
    )


def test_make_takes_the_first_python_that_runs_and_fits(clone):
    executable(clone / "bin" / "python3.11", "exit 127")
    executable(clone / "bin" / "python3.10", 'echo "$@" >> calls')
    process = call([shutil.which("make"), ".venv/bin/python"], clone, clone / "bin")
    assert (process.returncode, process.stdout) == (0, "Creating .venv with python3.10\n")
    assert (clone / "calls").read_text().splitlines()[-1] == "-m venv --clear .venv"


def test_make_without_a_target_lists_the_targets(clone):
    process = call([shutil.which("make")], clone, clone / "bin")
    assert process.returncode == 0
    for target in ("run", "test", "check", "bench", "wheel"):
        assert re.search(rf"^  make {target} +\w", process.stdout, re.MULTILINE), target


def test_ci_stops_at_the_first_target_that_fails(clone):
    executable(clone / "bin" / "make", 'echo "made $1"; test "$1" != check')
    os.symlink(shutil.which("dirname"), clone / "bin" / "dirname")
    process = call([shutil.which("bash"), str(clone / ".ci" / "run")], clone, clone / "bin")
    assert process.returncode == 1
    assert re.findall("made (.*)", process.stdout) == ["test", "check"]
