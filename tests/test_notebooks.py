"""The notebooks of colab/ run from top to bottom in a fresh kernel, quietly, and name no place on a machine."""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((pathlib.Path(__file__).resolve().parent.parent / "colab").glob("*.ipynb"))

# Lines on stderr that no setting silences, with the reason why each is harmless.
NOTICES = {
    # Reverb's C++ code prints these without a level, whenever a server starts, is read, or ends.
    r"\[reverb/cc/.*\] +Initializing TFRecordCheckpointer in .*": "a server starts",
    r"\[reverb/cc/.*\] +Loading latest checkpoint from .*": "a server starts",
    r"\[reverb/cc/.*\] +Started replay server on port \d+": "a server starts",
    r"\[reverb/cc/.*\] +Sampler and server are owned by the same process .*": "a short cut is taken",
    r"\[reverb/cc/.*\] +Shutting down replay server": "a server ends",
}

# What shows where a notebook was written: folders of a machine, a user or a temporary run.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|Users|mnt|var|opt)/|[A-Z]:\\\\|site-packages")

MAX_OUTPUT_BYTES = 100_000

KERNEL = "this-interpreter"


def read(path: pathlib.Path) -> Any:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


def outputs_of(notebook: Any) -> list[tuple[str, Any]]:
    """Returns each output with its cell's id."""
    return [(cell.id, output) for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_on(notebook: Any, stream: str) -> list[tuple[str, str]]:
    """Returns each line that a cell wrote to `stdout` or `stderr`, with the cell's id."""
    return [
        (cell_id, line)
        for cell_id, output in outputs_of(notebook)
        if output.output_type == "stream" and output.name == stream
        for line in output.text.splitlines()
        if line.strip()
    ]


def write_kernel(folder: pathlib.Path) -> None:
    """A kernel of this interpreter, for JUPYTER_PATH."""
    spec_folder = folder / "kernels" / KERNEL
    spec_folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, "display_name": KERNEL, "language": "python"}
    (spec_folder / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def executed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A notebook with the outputs of this run, in a kernel that reads and writes nothing in the user's home."""
    folder = tmp_path_factory.mktemp("notebook")
    write_kernel(folder)
    work_folder = folder / "work"
    work_folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
            patch.setenv(name, str(folder / name.lower()))
        patch.setenv("TMPDIR", str(work_folder))
        # As in a notebook, whatever the tests themselves draw with.
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        client = NotebookClient(
            read(request.param),
            kernel_name=KERNEL,
            timeout=400,
            # A busy machine needs more than the minute, and the 4 s for what a cell writes last, that are the default.
            startup_timeout=300,
            iopub_timeout=60,
            resources={"metadata": {"path": str(work_folder)}},
        )
        return client.execute()


def test_there_is_a_notebook() -> None:
    names = ["multi_agent", "offline_rlds", "prioritized", "quickstart", "saving", "sequences"]
    assert [path.stem for path in NOTEBOOKS] == names


def test_it_runs_and_writes_nothing_that_looks_like_an_error(executed: Any) -> None:
    unexpected = [
        (cell_id, line)
        for cell_id, line in text_on(executed, "stderr")
        if not any(re.fullmatch(notice, line.strip()) for notice in NOTICES)
    ]
    assert unexpected == []
    # Loggers that write to stdout in a kernel.
    told = [line for line in text_on(executed, "stdout") if re.match(r"WARNING|ERROR|Traceback|[WE]\d{4} ", line[1])]
    assert told == []


def test_its_pictures_appear(executed: Any) -> None:
    pictures = [cell_id for cell_id, output in outputs_of(executed) if "image/png" in output.get("data", {})]
    drawing = [cell.id for cell in executed.cells if cell.cell_type == "code" and "plt.show()" in cell.source]
    assert pictures == drawing != []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_cells_have_ids_and_are_as_if_never_run(path: pathlib.Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor >= 5) == (4, True)  # the first format with ids
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(cell.execution_count is None for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_keeps_only_small_pictures_of_its_outputs(path: pathlib.Path) -> None:
    outputs = outputs_of(read(path))
    assert {output.output_type for _, output in outputs} <= {"display_data"}
    assert all("image/png" in output.data for _, output in outputs)
    assert sum(len(json.dumps(output)) for _, output in outputs) < MAX_OUTPUT_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_names_no_place_on_a_machine(path: pathlib.Path) -> None:
    notebook = read(path)
    written = [(cell.id, MACHINE_PATH.search(cell.source)) for cell in notebook.cells]
    assert [(cell_id, found.group()) for cell_id, found in written if found] == []
    plain = [(cell_id, output.data.get("text/plain", "")) for cell_id, output in outputs_of(notebook)]
    assert [(cell_id, text) for cell_id, text in plain if MACHINE_PATH.search(text)] == []
