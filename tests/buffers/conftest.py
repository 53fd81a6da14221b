"""Runs TF-Agents' own test modules, from the installed wheel, against classes of ours."""

from __future__ import annotations

import importlib
import types
import unittest
from collections.abc import Callable

import pytest
from absl import flags


@pytest.fixture
def run_tf_agents_tests() -> Callable[..., dict[str, str]]:
    """A function that runs one of TF-Agents' test modules with one class replaced.

    The module reaches the class through an alias of the module that defines it; the alias is
    replaced by a copy of that module in which only the class is ours.
    """

    def run(test_module: str, alias: str, class_name: str, replacement: type) -> dict[str, str]:
        """Test name (`Class.method`) -> 'passed', 'skipped', or the last line of what went wrong."""
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["pytest"])
        module = importlib.import_module(test_module)
        original = getattr(module, alias)
        proxy = types.ModuleType(original.__name__)
        vars(proxy).update(vars(original))
        setattr(proxy, class_name, replacement)
        setattr(module, alias, proxy)
        try:
            return _outcomes(unittest.defaultTestLoader.loadTestsFromModule(module))
        finally:
            setattr(module, alias, original)

    return run


def _outcomes(suite: unittest.TestSuite) -> dict[str, str]:
    tests = [test for group in suite for test in group]
    result = unittest.TestResult()
    suite.run(result)
    outcomes = {_name(test): "passed" for test in tests}
    outcomes.update({_name(test): "skipped" for test, _ in result.skipped})
    for test, traceback in result.failures + result.errors:
        outcomes[_name(test)] = traceback.strip().splitlines()[-1]
    return outcomes


def _name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])
