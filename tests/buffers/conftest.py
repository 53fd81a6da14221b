"""Every buffer and backend for the contract; and TF-Agents' own test modules, run against classes of ours."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from absl import flags

from replayfeed.buffers import (
    BufferInfo,
    BufferStats,
    EpisodicReplayBuffer,
    MultiAgentReplayBuffer,
    Prioritized,
    ReplayBuffer,
    ReservoirReplayBuffer,
    ReverbReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
    Window,
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a test asks of a buffer, in words that every backend can translate."""

    batch_size: int = 1
    num_steps: int = 1
    steps: int = 64
    cast: bool = False
    end_of_episode_fn: Callable[[Any], Any] | None = None
    # How long a served buffer waits: short only where a test waits for that to end.
    patience_s: float = 30.0


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
        timeout_s=settings.patience_s,
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
        timeout_s=settings.patience_s,
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


class OneAgent(ReplayBuffer):
    """A `MultiAgentReplayBuffer` of one agent, `"a"`, as any buffer: only names are put on and taken off.

    Args:
      agents: the buffer.
    """

    def __init__(self, agents: MultiAgentReplayBuffer) -> None:
        self._agents = agents
        self._is_lockstep = agents.mode == "lockstep"
        self._policy = None if self._is_lockstep else agents.policies[0]

    @property
    def data_spec(self) -> Any:
        return self._agents.data_spec["a"]

    @property
    def batch_size(self) -> int:
        return self._agents.batch_size

    @property
    def capacity(self) -> int:
        return self._agents.capacity

    @property
    def capacity_unit(self) -> Any:
        return self._agents.capacity_unit

    def __len__(self) -> int:
        return len(self._agents)

    def num_frames(self) -> tf.Tensor:
        return self._agents.num_frames()

    def add_batch(self, items: Any, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None) -> Any:
        return self._ids(
            self._agents.add_batch(
                {"a": items}, end_of_episode=end_of_episode, priorities=self._put_on(priorities), streams=streams
            )
        )

    def add_sequence(
        self, items: Any, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Any:
        return self._ids(
            self._agents.add_sequence(
                {"a": items}, end_of_episode=end_of_episode, priorities=self._put_on(priorities), streams=streams
            )
        )

    def let_streams_part(self) -> None:
        self._agents.let_streams_part()

    def end_stream(self, b: int | None = None) -> None:
        try:
            self._agents.end_stream(b)
        except ValueError as error:
            raise ValueError(str(error).replace("no environment", "no stream")) from error

    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Callable[[Any], Any] | None = None,
        single_deterministic_pass: bool = False,
        *,
        window: Window | None = None,
        epochs: int | None = None,
    ) -> tf.data.Dataset:
        function = sequence_preprocess_fn
        if self._is_lockstep and sequence_preprocess_fn is not None:

            def function(items: Any) -> Any:
                return {"a": sequence_preprocess_fn(items["a"])}

        dataset = self._agents.as_dataset(
            sample_batch_size,
            num_steps,
            num_parallel_calls,
            function,
            single_deterministic_pass,
            window=window,
            epochs=epochs,
            policy=self._policy,
        )
        return dataset.map(self._taken_off)

    def sample(
        self, sample_batch_size: int | None = None, num_steps: int | None = None, *, window: Window | None = None
    ) -> Any:
        return self._taken_off(*self._agents.sample(sample_batch_size, num_steps, window=window, policy=self._policy))

    def sample_at_least(self, min_steps: int, num_steps: int | None = None, *, window: Window | None = None) -> Any:
        return self._taken_off(*self._agents.sample_at_least(min_steps, num_steps, window=window, policy=self._policy))

    def get(self, ids: Any, num_steps: int | None = None) -> Any:
        items = self._agents.get(ids, num_steps, policy=self._policy)
        return items["a"] if self._is_lockstep else items

    def update_priorities(self, keys: Any, priorities: Any = None, *, td_errors: Any = None) -> Any:
        return self._agents.update_priorities(keys, priorities, td_errors=td_errors, policy=self._policy)

    def gather_all(self) -> Any:
        return tf.nest.map_structure(lambda leaf: leaf.to_tensor(), self._agents.gather_all()["a"])

    def clear(self) -> None:
        self._agents.clear()

    def stats(self) -> BufferStats:
        return self._agents.stats(self._policy)

    def save(self, path: Any, **arguments: Any) -> Any:
        return self._agents.save(path, **arguments)

    def restore(self, path: Any, on_mismatch: Any = "error", **arguments: Any) -> Any:
        return self._agents.restore(path, on_mismatch, **arguments)

    def get_state(self) -> Any:
        return self._agents.get_state()

    def set_state(self, state: Any, on_mismatch: Any = "error") -> Any:
        return self._agents.set_state(state, on_mismatch)

    def flush(self) -> None:
        self._agents.flush()

    def close(self) -> None:
        self._agents.close()

    def _put_on(self, priorities: Any) -> Any:
        return priorities if self._is_lockstep or priorities is None else {"a": priorities}

    def _ids(self, ids: Any) -> Any:
        return ids if self._is_lockstep else ids["a"]

    @tf.autograph.experimental.do_not_convert
    def _taken_off(self, items: Any, info: Any) -> tuple[Any, BufferInfo]:
        # Without what only buffers of many agents tell.
        mask = info.mask["a"] if self._is_lockstep else info.mask
        return items["a"] if self._is_lockstep else items, BufferInfo(*info[:4], mask)


def _independent(spec: Any, settings: Settings) -> ReplayBuffer:
    function = settings.end_of_episode_fn
    make = functools.partial(
        TFUniformReplayBuffer,
        max_length=settings.steps,
        seed=7,
        end_of_episode_fn=None if function is None else lambda stored: function(stored.frame),
    )
    return OneAgent(
        MultiAgentReplayBuffer({"a": spec}, {"a": "p"}, make, batch_size=settings.batch_size, cast=settings.cast)
    )


def _lockstep(spec: Any, settings: Settings) -> ReplayBuffer:
    return OneAgent(
        MultiAgentReplayBuffer(
            {"a": spec},
            {"a": "p"},
            functools.partial(TFUniformReplayBuffer, max_length=settings.steps, seed=7),
            mode="lockstep",
            batch_size=settings.batch_size,
            cast=settings.cast,
            end_of_episode_fn=settings.end_of_episode_fn,
        )
    )


BACKENDS = {
    "local": _local,
    "sampled": _sampled,
    "prioritized": _prioritized,
    "episodic": _episodic,
    "reservoir": _reservoir,
    "independent": _independent,
    "lockstep": _lockstep,
    "served": _served,
    "served_prioritized": _served_prioritized,
}

# A buffer of episodes gives whole ones where others give frames; a reservoir holds no streams, so no windows of them; a
# buffer of many agents is told by present=, not by streams=, which environments bring frames; what a server holds it
# keeps itself.
_NOT_FOR = {
    "by_frames": ("[episodic",),
    "by_streams": ("[reservoir",),
    "by_some_streams": ("[independent", "[lockstep"),
    "in_process": ("[served",),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests of what a backend by its nature has not."""
    by_nature = [
        item
        for item in items
        if any(
            item.get_closest_marker(marker) and any(name in item.name for name in names)
            for marker, names in _NOT_FOR.items()
        )
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
def one_agent() -> type[OneAgent]:
    """Makes any buffer of a `MultiAgentReplayBuffer` of one agent, `"a"`."""
    return OneAgent


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


# Files of Reverb's writers that hold no lock: Python itself interrupts no `with` just before it releases its lock, as
# tracing would.
_WRITER_FILES = (
    "reverb_agents_writer.py",
    "reverb_cuts.py",
    "reverb_cutter.py",
    "reverb_sender.py",
    "reverb_targets.py",
    "reverb_writer.py",
)


@pytest.fixture
def interrupted_at() -> Callable[[int, Callable[[], object]], bool]:
    """A function that interrupts `call` at so many lines of a writer, and says whether it got there."""

    def run(line: int, call: Callable[[], object]) -> bool:
        num_lines = 0

        def trace(frame: types.FrameType, event: str, _: Any) -> Any:
            nonlocal num_lines
            if not frame.f_code.co_filename.endswith(_WRITER_FILES):
                return None
            num_lines += event == "line"
            if num_lines == line:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    return run
