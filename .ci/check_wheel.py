"""Install the built wheel in a fresh environment and use it from another folder.

The tests see the editable install, where a file that setup.cfg forgets is still found. Here it is not.
The environment gets no extra: Reverb, TF-Agents and RLDS are absent, as for a user who asked for none.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

USE_IT = """
import importlib.util
import pathlib

import numpy as np
import tensorflow as tf

import replayfeed.buffers
import replayfeed.pipelines

for package in (replayfeed.buffers, replayfeed.pipelines):
    folder = pathlib.Path(package.__file__).parent
    assert "site-packages" in folder.parts, folder
    assert (folder / "py.typed").exists(), folder
for absent in ("reverb", "tf_agents", "rlds", "tensorflow_datasets", "buffers", "pipelines"):
    assert importlib.util.find_spec(absent) is None, absent

spec = {"observation": tf.TensorSpec([4], tf.float32), "reward": tf.TensorSpec([], tf.float32)}
buffer = replayfeed.buffers.TFUniformReplayBuffer(spec, batch_size=2, max_length=10, seed=0)
for step in range(3):
    buffer.add_batch({"observation": np.full([2, 4], step, np.float32), "reward": np.full([2], step, np.float32)})
items, info = buffer.sample(5, num_steps=2)
assert items["observation"].shape == (5, 2, 4), items
assert np.array_equal(items["reward"][:, 1] - items["reward"][:, 0], np.ones(5)), items
assert info.ids.shape == (5, 2), info
print(f"added {buffer.num_frames()} frames, sampled {items['reward'].shape[0]} windows")
"""


def python_files(folder: str) -> set[str]:
    """Returns the Python files of a package folder, as the wheel names them."""
    return {f"replayfeed/{path.relative_to(ROOT)}" for path in (ROOT / folder).rglob("*.py")}


def check_wheel(wheel: pathlib.Path) -> None:
    """Exits with what is wrong where the wheel is not what the folders hold, or fails in use."""
    files = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    expected = python_files("buffers") | python_files("cli") | python_files("pipelines")
    if files != expected:
        sys.exit(f"{wheel.name}: missing {sorted(expected - files)}, unexpected {sorted(files - expected)}")
    print(f"{wheel.name}: {len(files)} modules")
    with tempfile.TemporaryDirectory() as folder:
        environment = pathlib.Path(folder, "environment")
        venv.create(environment, with_pip=True)
        python = environment / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, wheel, "--constraint", ROOT / "constraints.txt"]).returncode:
            sys.exit(f"{wheel.name} cannot be installed; see above")
        elsewhere = pathlib.Path(folder, "elsewhere")
        elsewhere.mkdir()
        if subprocess.run([python, "-c", USE_IT], cwd=elsewhere).returncode:
            sys.exit(f"{wheel.name} is installed and does not work from another folder; see above")


if __name__ == "__main__":
    wheels = sorted(pathlib.Path(sys.argv[1]).glob("replayfeed-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel in {sys.argv[1]}, found {[wheel.name for wheel in wheels]}")
    check_wheel(wheels[0].resolve())
