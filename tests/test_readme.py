"""The README's code runs as printed, from top to bottom, and prints what its comments say."""

import re

import pytest


def test_the_readmes_python_blocks_run_in_order(repository, run_python):
    text = (repository / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    printed = run_python("\n".join(blocks))
    shown = ("(32, 3, 4) 0.0125", "(8, 3)", "(10, 11), (20, 21)", "(True, True, True, False)]", "[1. 0. 1. 0.]")
    for expected in shown:
        assert expected in printed


@pytest.mark.parametrize("target", ["run", "test", "check", "wheel"])
def test_the_readmes_make_targets_exist(repository, target):
    assert f"make {target}" in (repository / "README.md").read_text()
    assert re.search(rf"^{target}:", (repository / "Makefile").read_text(), re.MULTILINE)
