"""Builds torchrl's segment tree from the sources in its wheel, for the torch that is installed; a minute.

Run by the Python of torchrl's environment. It needs a C++ compiler.
"""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sysconfig
import tempfile

from torch.utils import cpp_extension

_MODULE = "_torchrl"


def main() -> None:
    found = importlib.util.find_spec("torchrl")
    if found is None or found.origin is None:
        raise SystemExit("torchrl is not installed")
    package = pathlib.Path(found.origin).parent
    target = package / f"{_MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with tempfile.TemporaryDirectory() as folder:
        cpp_extension.load(
            _MODULE,
            [str(package / "csrc" / name) for name in ("pybind.cpp", "utils.cpp")],
            extra_cflags=["-O3", "-std=c++17"],
            build_directory=folder,
            is_python_module=False,
        )
        # The wheel's own may have any of Python's endings, and the first that fits is loaded.
        for old in package.glob(f"{_MODULE}*.so"):
            old.unlink()
        shutil.copy(pathlib.Path(folder, f"{_MODULE}.so"), target)


if __name__ == "__main__":
    main()
