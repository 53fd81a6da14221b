"""A frame that looks like an end which nobody told is remembered by a save, so that the next one is warned of."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import (
    BufferConfig,
    MultiAgentReplayBuffer,
    TFPrioritizedReplayBuffer,
    TFUniformReplayBuffer,
)

SPEC = {"value": tf.TensorSpec([], tf.int64), "done": tf.TensorSpec([], tf.bool)}
TOLD = "a frame followed one with 'done', and no end was told"


def uniform() -> TFUniformReplayBuffer:
    return TFUniformReplayBuffer(SPEC, 1, 10)


def prioritized() -> TFPrioritizedReplayBuffer:
    return TFPrioritizedReplayBuffer(SPEC, 1, 10)


def of_agents(kind: str, mode: str = "independent") -> Callable[[], MultiAgentReplayBuffer]:
    def make() -> MultiAgentReplayBuffer:
        return MultiAgentReplayBuffer({"x": SPEC, "y": SPEC}, {"x": "p", "y": "q"}, BufferConfig(kind, 10), mode=mode)

    return make


MAKERS = {
    "uniform": uniform,
    "prioritized": prioritized,
    "rings of agents": of_agents("uniform"),
    "episodes of agents": of_agents("episodic"),
    "lockstep": of_agents("uniform", "lockstep"),
}


def add(buffer: Any, value: int, *, done: bool) -> None:
    frame = {"value": np.array([value]), "done": np.array([done])}
    buffer.add_batch({"x": frame} if isinstance(buffer, MultiAgentReplayBuffer) else frame)


def draw_windows(buffer: Any) -> None:
    """Ends matter from now on."""
    policy = {"policy": "p"} if isinstance(buffer, MultiAgentReplayBuffer) and buffer.mode == "independent" else {}
    with pytest.raises(ValueError):  # one frame is no window of two
        buffer.sample(1, num_steps=2, **policy)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("by_state", [False, True])
def test_what_follows_it_after_a_restore_is_warned_of(tmp_path, name, by_state):
    saved, restored = MAKERS[name](), MAKERS[name]()
    add(saved, 1, done=True)
    if by_state:
        restored.set_state(saved.get_state())
    else:
        saved.save(tmp_path)
        restored.restore(tmp_path)
    draw_windows(restored)
    with pytest.warns(UserWarning, match=TOLD):
        add(restored, 2, done=False)


@pytest.mark.parametrize("name", ["uniform", "rings of agents", "lockstep"])
def test_what_follows_it_after_a_cut_back_is_warned_of(tmp_path, name):
    saved, restored = MAKERS[name](), MAKERS[name]()
    add(saved, 1, done=True)
    saved.mark_step(5)
    saved.end_stream()
    add(saved, 2, done=False)
    saved.save(tmp_path, step=9)
    with pytest.warns(UserWarning, match="cut back to step 5"):
        restored.restore(tmp_path, step=6, cut_back=True)
    draw_windows(restored)
    with pytest.warns(UserWarning, match=TOLD):
        add(restored, 3, done=False)


@pytest.mark.parametrize("name", MAKERS)
def test_an_end_that_was_told_after_it_is_remembered_too(tmp_path, name):
    saved, restored = MAKERS[name](), MAKERS[name]()
    add(saved, 1, done=True)
    saved.end_stream()
    saved.save(tmp_path)
    add(restored, 7, done=True)  # what it had itself is forgotten
    restored.restore(tmp_path)
    draw_windows(restored)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add(restored, 2, done=False)


@pytest.mark.parametrize("known", [False, True])
def test_a_state_that_tells_no_field_or_none_of_this_kind(known):
    saved, restored = uniform(), uniform()
    add(saved, 1, done=True)
    state = saved.get_state()
    if known:
        state["values"]["loose_flag"] = 3
        with pytest.raises(ValueError, match="values/loose_flag must be a field's name or None, got 3"):
            restored.set_state(state)
    else:  # as saves of before have none
        del state["values"]["loose_flag"]
        restored.set_state(state)
        draw_windows(restored)
        add(restored, 2, done=False)
