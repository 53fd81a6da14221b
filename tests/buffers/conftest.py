"""Every buffer and backend for the contract; and TF-Agents' own test modules, run against classes of ours."""

from __future__ import annotations

import dataclasses
import importlib
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from absl import flags

from replayfeed.buffers import (
    EpisodicReplayBuffer,
    Prioritized,
    ReplayBuffer,
    ReservoirReplayBuffer,
    ReverbReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a test asks of a buffer, in words that every backend can translate."""

    batch_size: int = 1
    num_steps: int = 1
    steps: int = 64
    cast: bool = False
    end_of_episode_fn: Callable[[Any], Any] | None = None


def _local(spec: Any, settings: Settings) -> ReplayBuffer:
    return TFUniformReplayBuffer(
        spec,
        settings.batch_size,
        settings.steps,
        seed=7,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
    )


def _sampled(spec: Any, settings: Settings) -> ReplayBuffer:
    return TFUniformReplayBuffer(
        spec,
        settings.batch_size,
        settings.steps,
        seed=7,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
        newest_fraction=1e-9,  # which is no row at all: all draws go through a sampler, and are uniform
    )


def _served(spec: Any, settings: Settings) -> ReplayBuffer:
    return ReverbReplayBuffer.local(
        spec,
        batch_size=settings.batch_size,
        max_size=settings.steps * settings.batch_size,
        sequence_length=settings.num_steps,
        timeout_s=1.0,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
    )


def _served_prioritized(spec: Any, settings: Settings) -> ReplayBuffer:
    return ReverbReplayBuffer.local(
        spec,
        batch_size=settings.batch_size,
        max_size=settings.steps * settings.batch_size,
        sequence_length=settings.num_steps,
        sampler=Prioritized(),
        initial="max",
        tracks_least=True,
        weight_norm="buffer",
        timeout_s=1.0,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
    )


def _episodic(spec: Any, settings: Settings) -> ReplayBuffer:
    return EpisodicReplayBuffer(
        spec,
        settings.steps * settings.batch_size,
        batch_size=settings.batch_size,
        max_frames=settings.steps * settings.batch_size,
        seed=7,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
    )


def _reservoir(spec: Any, settings: Settings) -> ReplayBuffer:
    return ReservoirReplayBuffer(
        spec,
        settings.steps * settings.batch_size,
        batch_size=settings.batch_size,
        seed=7,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
    )


def _prioritized(spec: Any, settings: Settings) -> ReplayBuffer:
    return TFPrioritizedReplayBuffer(
        spec,
        settings.batch_size,
        settings.steps,
        seed=7,
        cast=settings.cast,
        end_of_episode_fn=settings.end_of_episode_fn,
    )


BACKENDS = {
    "local": _local,
    "sampled": _sampled,
    "prioritized": _prioritized,
    "episodic": _episodic,
    "reservoir": _reservoir,
    "served": _served,
    "served_prioritized": _served_prioritized,
}

# A buffer of episodes gives whole ones where others give frames; a reservoir holds no streams, so no windows of them.
_NOT_FOR = {"by_frames": "[episodic", "by_streams": "[reservoir"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests of what a backend by its nature has not."""
    by_nature = [
        item
        for item in items
        if any(item.get_closest_marker(marker) and name in item.name for marker, name in _NOT_FOR.items())
    ]
    config.hook.pytest_deselected(items=by_nature)
    items[:] = [item for item in items if item not in by_nature]


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., ReplayBuffer]]:
    """Builds a buffer of the backend under test, and closes what it built.

    `make(spec, batch_size=, num_steps=, steps=, ...)`: `steps` frames of each stream, to be read
    in windows of `num_steps`. `make.backend` is the backend's name.
    """
    built: list[ReplayBuffer] = []

    def build(spec: Any, **settings: Any) -> ReplayBuffer:
        built.append(BACKENDS[request.param](spec, Settings(**settings)))
        return built[-1]

    build.backend = request.param  # type: ignore[attr-defined]
    yield build
    for buffer in built:
        buffer.close()


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
