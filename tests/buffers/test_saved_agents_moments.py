"""A save of many agents is one moment of all their buffers, and a cut back to a step one of theirs too."""

from __future__ import annotations

import functools
import threading

import numpy as np
import pytest
import tensorflow as tf

from replayfeed.buffers import TFUniformReplayBuffer, Window

from .agents_to_save import MAKERS, MODES, POLICIES, add, make, plain, times


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("by_state", [False, True])
def test_what_is_saved_while_threads_add_is_one_moment_of_all_agents(mode, by_state, tmp_path):
    """No policy has a frame of a moment of which another one has none, or has lost it."""
    build = functools.partial(make, mode, functools.partial(TFUniformReplayBuffer, max_length=50))
    buffer, is_over = build(), threading.Event()

    def add_on() -> None:
        while not is_over.is_set():
            add(buffer, 0)

    for number in range(60):
        add(buffer, number)
    threads = [threading.Thread(target=add_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    newest = []
    try:
        for _ in range(10):
            restored = build()
            if by_state:
                restored.set_state(buffer.get_state())
            else:
                buffer.save(tmp_path, keep_last=1)
                restored.restore(tmp_path)
            newest.append(max(max(each) for each in times(restored)))
            parts = 1 if mode == "lockstep" else 2
            assert times(restored) == [set(range(newest[-1] - 49, newest[-1] + 1))] * parts
            # The next moment is the next one of all.
            add(restored, 7)
            assert times(restored) == [set(range(newest[-1] - 48, newest[-1] + 2))] * parts
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert newest == sorted(newest)


def test_a_buffer_that_cannot_be_captured_leaves_the_others_free(monkeypatch):
    """Frames of the first one are not kept for a save that never comes: beyond 4 MB of them adds would wait."""
    spec = {"value": tf.TensorSpec([2**20], tf.uint8)}
    buffer = make(data_specs=dict.fromkeys(POLICIES, spec))
    frames = dict.fromkeys(POLICIES, {"value": np.zeros([1, 7, 2**20], np.uint8)})
    buffer.add_sequence(frames)
    monkeypatch.setattr(buffer.buffer_of("wolf"), "_capture", lambda: int("a part that fails"))
    with pytest.raises(ValueError, match="a part that fails"):
        buffer.get_state()
    monkeypatch.undo()
    overwrites = threading.Thread(target=buffer.add_sequence, args=(frames,), daemon=True)
    overwrites.start()
    overwrites.join(timeout=60)
    assert not overwrites.is_alive()


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "episodic"])
@pytest.mark.parametrize("mode", MODES)
def test_all_parts_go_back_to_one_moment(mode, kind, tmp_path):
    """What was added since is gone from all of them, and who was alive then is again."""
    build = functools.partial(make, mode, MAKERS[kind])
    buffer, then = build(), build()
    for each in (buffer, then):
        add(each, 0)
        add(each, 1, ["sheep", "wolf_0"], end_of_episode={"sheep": np.array([True])})
        buffer.mark_step(10)
    add(buffer, 2, ["wolf_1"])
    add(buffer, 3, end_of_episode=np.array([True]))
    buffer.save(tmp_path, step=20)
    other = build()
    report = other.restore(tmp_path, step=10, cut_back=True)
    assert (report.step, report.frames) == (10, len(then))
    assert report.cut == len(buffer) - len(then)
    for number in range(4, 7):
        for each in (other, then):
            add(each, number, ["wolf_0"] if number == 4 else ["sheep", "wolf_1"])
    assert plain(other.gather_all()) == plain(then.gather_all())
    assert times(other) == times(then)
    if kind != "uniform":
        return
    windows = [
        plain(list(each.as_dataset(window=Window(2, short="pad"), single_deterministic_pass=True)))
        for each in (other, then)
    ]
    assert windows[0] == windows[1]


def test_a_moment_of_other_buffers_is_refused():
    buffer = make()
    buffer.mark_step(1)
    with pytest.raises(ValueError, match="is no moment of a MultiAgentReplayBuffer"):
        buffer._cut_back(7)
    moment = buffer._moment()
    with pytest.raises(ValueError, match="the moment is of the buffers 'sheep', not 'sheep', 'wolf'"):
        buffer._cut_back({**moment, "parts": {"sheep": moment["parts"]["sheep"]}})


def test_where_one_part_cannot_go_back_none_can():
    buffer = make(make_buffer={"wolf": MAKERS["uniform"], "sheep": MAKERS["reservoir"]})
    with pytest.raises(ValueError, match="mark_step: a MultiAgentReplayBuffer cannot be cut back to a step"):
        buffer.mark_step(1)
