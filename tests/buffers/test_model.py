"""The in-process uniform buffer against a naive list of episodes, over random histories (hypothesis).

The model keeps every frame ever written in plain Python lists and derives each answer from
them anew. Sizes are small, so that seams, cuts and evictions come up in nearly every example.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import event, given, settings
from hypothesis import strategies as st

from replayfeed.buffers import EmptyBufferError, TFUniformReplayBuffer, Window

FIRST, MID, LAST = 0, 1, 2


class Step(NamedTuple):
    """A namedtuple whose `step_type` tells the ends, as TF-Agents' Trajectory does."""

    step_type: Any
    value: Any
    extra: Any


VALUE = tf.TensorSpec([], tf.int64)
EXTRA = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([], tf.bool))
SPECS = {
    "plain": {"value": VALUE, "extra": EXTRA},
    "is_last": {"value": VALUE, "extra": EXTRA, "is_last": tf.TensorSpec([], tf.bool)},
    "step_type": Step(tf.TensorSpec([], tf.int32), VALUE, EXTRA),
}


@dataclasses.dataclass
class Frame:
    """A frame as the model knows it: the `step`-th of its episode, from 0; `final`: only a final observation."""

    id: int
    value: int
    step: int
    final: bool
    sampled: bool = False


class Cut(NamedTuple):
    """A window's values: those before the drawn frame, and those from it on."""

    before: list[int]
    after: list[int]

    def padded(self, window: Window) -> list[int | None]:
        """All values, None for padding."""
        front = window.burn_in - len(self.before)
        return [None] * front + self.before + self.after + [None] * (window.num_steps - len(self.after))


class Model:
    """`num_streams` lists of frames, of which the last `max_length` are held."""

    def __init__(self, num_streams: int, max_length: int) -> None:
        self.num_streams = num_streams
        self.max_length = max_length
        self.next_id = 0
        self.clear()

    def clear(self) -> None:
        self.streams: list[list[Frame]] = [[] for _ in range(self.num_streams)]
        self.gone: list[Frame] = []
        self.next_begins = [True] * self.num_streams
        self.last_step = [0] * self.num_streams
        self.added = self.sampled = 0

    def end_stream(self, stream: int | None) -> None:
        for b in range(self.num_streams) if stream is None else [stream]:
            self.next_begins[b] = True

    def add(self, values: Any, begins: Any, ends: Any, final: Any) -> list[int]:
        """One frame a stream; returns their ids."""
        ids = []
        for b, stream in enumerate(self.streams):
            step = 0 if self.next_begins[b] or begins[b] else self.last_step[b] + 1
            stream.append(Frame(self.next_id, int(values[b]), step, bool(final[b])))
            self.last_step[b] = step
            self.next_begins[b] = bool(ends[b])
            ids.append(self.next_id)
            self.next_id += 1
            self.added += 1
            if len(stream) > self.max_length:
                self.gone.append(stream.pop(0))
        return ids

    def episodes(self) -> list[list[Frame]]:
        """What is held of each episode, stream after stream."""
        episodes: list[list[Frame]] = []
        for stream in self.streams:
            for index, frame in enumerate(stream):
                if frame.step == 0 or index == 0:
                    episodes.append([])
                episodes[-1].append(frame)
        return episodes

    def windows(self, num_steps: int, shift: int = 1, *, keep_short: bool = False) -> list[list[int]]:
        """Values of the windows of an ordered pass; the default is every eligible start once."""
        windows = []
        for episode in self.episodes():
            for start in range(0, len(episode), shift):
                window = episode[start : start + num_steps]
                if not window[0].final and (keep_short or len(window) == num_steps):
                    windows.append([frame.value for frame in window])
        return windows

    def eligible(self, window: Window) -> list[Cut]:
        """Every eligible window of this kind, stream after stream, oldest first, from its definition."""
        cuts = []
        for b, stream in enumerate(self.streams):
            if window.boundaries == "ignore":
                time = len(self.gone) // self.num_streams
                episodes = [[dataclasses.replace(f, step=time + i, final=False) for i, f in enumerate(stream)]]
            else:
                episodes = [[]]
                for index, frame in enumerate(stream):
                    episodes += [[]] if frame.step == 0 and index else []
                    episodes[-1].append(frame)
            for episode in episodes:
                finished = episode is not episodes[-1] or self.next_begins[b] or window.pad_unfinished
                for index, frame in enumerate(episode):
                    after = episode[index : index + window.num_steps]
                    is_short = len(after) < window.num_steps
                    if frame.step % window.stride or frame.final or (is_short and window.short == "drop"):
                        continue
                    if is_short and not finished:
                        continue
                    # With a stride the window before may show the end already.
                    shown = frame.step - window.stride + window.num_steps - 1
                    if is_short and window.stride > 1 and frame.step > 0 and shown >= episode[-1].step:
                        continue
                    before = episode[max(0, index - window.burn_in) : index]
                    if len(before) < min(window.burn_in, frame.step):
                        continue  # some of its context was evicted
                    cuts.append(Cut([f.value for f in before], [f.value for f in after]))
        return cuts

    def held(self) -> list[Frame]:
        return [frame for stream in self.streams for frame in stream]

    def mark_sampled(self, ids: Any, num: int) -> None:
        self.sampled += num
        by_id = {frame.id: frame for frame in self.held()}
        for each in np.asarray(ids).reshape(-1).tolist():
            by_id[each].sampled = True


class Pair:
    """The buffer and its model, driven by the same operations."""

    def __init__(self, kind: str, num_streams: int, max_length: int, seed: int) -> None:
        self.kind = kind
        self.model = Model(num_streams, max_length)
        self.buffer = TFUniformReplayBuffer(SPECS[kind], num_streams, max_length, seed=seed)
        self.next_value = 1

    def items(self, values: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> Any:
        """Leaves `[B, T, ...]`, with which all fields follow from the value."""
        extra = (np.stack([values, -values], -1).astype(np.float32), values % 3 == 0)
        if self.kind == "plain":
            return {"value": values, "extra": extra}
        if self.kind == "is_last":
            return {"value": values, "extra": extra, "is_last": ends}
        step_type = np.where(ends, LAST, np.where(begins, FIRST, MID)).astype(np.int32)
        return Step(step_type, values, extra)

    def add(self, begins: np.ndarray, ends: np.ndarray, *, as_sequence: bool) -> None:
        """Writes `[B, T]` frames with these marks into both."""
        num_steps = begins.shape[1]
        values = self.next_value + np.arange(begins.size).reshape(begins.shape)
        self.next_value += begins.size
        begins = begins & ~ends if self.kind == "step_type" else np.zeros_like(begins)
        items = self.items(values, begins, ends)
        arguments = {"end_of_episode": ends} if self.kind == "plain" else {}
        final = ends if self.kind != "plain" else np.zeros_like(ends)
        expected = [self.model.add(values[:, t], begins[:, t], ends[:, t], final[:, t]) for t in range(num_steps)]
        expected_ids = np.array(expected, np.int64).reshape(num_steps, self.model.num_streams).T
        if as_sequence:
            ids = self.buffer.add_sequence(items, **arguments)
        else:
            steps = [
                self.buffer.add_batch(
                    tf.nest.map_structure(lambda leaf, t=t: leaf[:, t], items),
                    **{name: flags[:, t] for name, flags in arguments.items()},
                )
                for t in range(num_steps)
            ]
            ids = np.stack(steps, 1) if steps else np.zeros((self.model.num_streams, 0), np.int64)
        np.testing.assert_array_equal(ids, expected_ids)

    def value(self, items: Any) -> np.ndarray:
        """The values of a sample's items; checks that all fields belong to them."""
        values, extra = (items.value, items.extra) if self.kind == "step_type" else (items["value"], items["extra"])
        values = np.asarray(values)
        np.testing.assert_array_equal(extra[0], np.stack([values, -values], -1))
        # Values begin at 1: 0 is padding.
        np.testing.assert_array_equal(extra[1], (values % 3 == 0) & (values > 0))
        return values

    def masked(self, items: Any, info: Any) -> list[int | None]:
        """The values of one window, None for padding; padding is zeros with the id -1."""
        values, mask = self.value(items), np.asarray(info.mask)
        np.testing.assert_array_equal(values[~mask], 0)
        np.testing.assert_array_equal(np.asarray(info.ids) == -1, ~mask)
        return np.where(mask, values, None).tolist()

    def sample_window(self, window: Window | None) -> None:
        """What a sample delivers is eligible, its chance and ids are right; nothing eligible is an error."""
        kind = window or Window(1)
        eligible = [cut.padded(kind) for cut in self.model.eligible(kind)]
        if not eligible:
            with pytest.raises(EmptyBufferError) as error:
                self.buffer.sample(3, window=window)
            self.check_message(str(error.value), kind)
            event("nothing eligible")
            return
        items, info = self.buffer.sample(7, window=window)
        mask = np.asarray(info.mask).reshape(7, kind.length)
        values = self.value(items).reshape(7, kind.length)
        assert all(row in eligible for row in np.where(mask, values, None).tolist())
        np.testing.assert_array_equal(values[~mask], 0)
        np.testing.assert_allclose(info.probabilities, 1 / len(eligible), rtol=1e-6)
        id_of = {frame.value: frame.id for frame in self.model.held()}
        ids = np.where(mask, np.vectorize(lambda value: id_of.get(value, -1))(values), -1)
        np.testing.assert_array_equal(np.asarray(info.ids).reshape(7, kind.length), ids)
        np.testing.assert_array_equal(info.keys, ids[:, kind.burn_in])
        self.model.mark_sampled(info.keys, 7)
        assert self.buffer.stats().windows_of(kind).eligible == len(eligible)

    def check_message(self, message: str, window: Window) -> None:
        frames = len(self.model.held())
        if not frames:
            assert "is empty" in message
        elif window.boundaries == "ignore":
            frames = len(self.model.streams[0])
            assert f"no window of {window.num_steps} frames: {frames} frames in each stream" in message
        else:
            episodes = self.model.episodes()
            longest = max(map(len, episodes))
            assert f"no window of {window.num_steps} frames: {len(episodes)} episodes, longest {longest}" in message

    def check_all(self) -> None:
        """Everything that is cheap to compare."""
        model, buffer = self.model, self.buffer
        held = [[frame.value for frame in stream] for stream in model.streams]
        np.testing.assert_array_equal(self.value(buffer.gather_all()), np.array(held).reshape(model.num_streams, -1))
        assert len(buffer) == int(buffer.num_frames()) == len(model.held())
        stats = buffer.stats()
        assert stats.frames == len(model.held())
        assert stats.added == model.added
        assert stats.sampled == model.sampled
        assert stats.evicted == len(model.gone)
        assert stats.evicted_unsampled == sum(not frame.sampled for frame in model.gone)
        assert stats.episodes == len(model.episodes())
        assert stats.fill_share == len(model.held()) / (model.num_streams * model.max_length)
        assert stats.replay_ratio == (model.sampled / model.added if model.added else None)

    def check_get(self, num_steps: int) -> None:
        """Every id held gives its frame, and its window where the episode is long enough; all others are refused."""
        held = self.model.held()
        ids = np.array([frame.id for frame in held], np.int64)
        before = ids.copy()
        assert self.value(self.buffer.get(ids)).tolist() == [frame.value for frame in held]
        np.testing.assert_array_equal(ids, before)  # FR-070
        for gone in [frame.id for frame in self.model.gone[-2:]] + [self.model.next_id, -1]:
            with pytest.raises(ValueError, match=f"id {gone} is not held"):
                self.buffer.get([gone])
        if num_steps > self.model.max_length:
            return
        windows = {window[0]: window for window in self.model.windows(num_steps)}
        finals = {frame.value for frame in held if frame.final}
        for frame in held:
            if frame.value in windows:
                assert self.value(self.buffer.get([frame.id], num_steps)).tolist() == [windows[frame.value]]
            elif not (num_steps == 1 and frame.value in finals):
                with pytest.raises(ValueError, match=f"no window of {num_steps} frames starts at id {frame.id}"):
                    self.buffer.get([frame.id], num_steps)

    def build_passes(self, num_steps: int) -> list[tf.data.Dataset]:
        """An ordered pass over all eligible starts, one that steps by `shift`, and a shuffled one; all live."""
        return [
            self.buffer.as_dataset(window=Window(num_steps), single_deterministic_pass=True),
            self.buffer.as_dataset(None, num_steps, single_deterministic_pass=True),
            self.buffer.as_dataset(None, num_steps, epochs=1),
        ]

    def check_passes(self, passes: list[tf.data.Dataset], num_steps: int, shift: int) -> None:
        eligible = self.model.windows(num_steps)
        self.check_pass(passes[0], eligible)
        self.check_pass(passes[1], self.model.windows(num_steps, shift, keep_short=True))
        if not eligible:
            with pytest.raises(tf.errors.InvalidArgumentError):
                next(iter(passes[2]))
            return
        got = [(self.value(items).tolist(), info) for items, info in passes[2]]
        assert sorted(window for window, _ in got) == sorted(eligible)
        np.testing.assert_allclose([info.probabilities for _, info in got], 1 / len(eligible), rtol=1e-6)
        for _, info in got:
            self.model.mark_sampled(info.keys, 1)

    def check_pass(self, dataset: tf.data.Dataset, expected: list[list[int]]) -> None:
        if not expected:
            with pytest.raises(tf.errors.InvalidArgumentError):
                next(iter(dataset))
            return
        id_of = {frame.value: frame.id for frame in self.model.held()}
        elements = list(dataset)
        assert [self.value(items).tolist() for items, _ in elements] == expected
        assert [info.ids.numpy().tolist() for _, info in elements] == [[id_of[v] for v in w] for w in expected]
        assert all(float(info.probabilities) == 1.0 for _, info in elements)
        for window, (_, info) in zip(expected, elements, strict=True):
            self.model.mark_sampled(info.keys, 1)
            assert info.mask.numpy().tolist() == [True] * len(window)


def windows(max_length: int) -> st.SearchStrategy[Window]:
    """Windows of all kinds."""
    sizes = {"num_steps": st.integers(1, max_length), "burn_in": st.integers(0, 3), "stride": st.integers(1, 4)}
    return (
        st.builds(Window, **sizes)
        | st.builds(Window, **sizes, short=st.just("pad"), pad_unfinished=st.booleans())
        | st.builds(Window, **sizes, boundaries=st.just("ignore"))
    )


@st.composite
def operations(draw: st.DrawFn, num_streams: int, max_length: int) -> list[tuple[Any, ...]]:
    """Histories: mostly adds, now and then a clear, the end of a stream or a sample."""
    mean_length = draw(st.sampled_from([1, 2, 4, 9]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    kinds = draw(st.lists(st.sampled_from(["batch", "sequence", "sequence", "sample", "end", "clear"]), max_size=9))
    result: list[tuple[Any, ...]] = []
    for kind in kinds:
        if kind in ("batch", "sequence"):
            num_steps = draw(st.integers(0, 2 * max_length + 2) if kind == "sequence" else st.integers(1, 4))
            begins = rng.random((num_streams, num_steps)) < 0.1
            ends = rng.random((num_streams, num_steps)) < 1 / mean_length
            result.append((kind, begins, ends))
        elif kind == "end":
            result.append((kind, draw(st.none() | st.integers(0, num_streams - 1))))
        elif kind == "sample":
            result.append((kind, draw(st.none() | windows(max_length))))
        elif not draw(st.integers(0, 2)):
            result.append((kind,))
    return result


@st.composite
def histories(draw: st.DrawFn) -> tuple[Pair, list[tuple[Any, ...]]]:
    num_streams, max_length = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    pair = Pair(draw(st.sampled_from(sorted(SPECS))), num_streams, max_length, draw(st.integers(0, 99)))
    return pair, draw(operations(num_streams, max_length))


def run(pair: Pair, steps: list[tuple[Any, ...]]) -> None:
    for kind, *arguments in steps:
        if kind == "batch":
            pair.add(*arguments, as_sequence=False)
        elif kind == "sequence":
            pair.add(*arguments, as_sequence=True)
        elif kind == "end":
            pair.buffer.end_stream(*arguments)
            pair.model.end_stream(*arguments)
        elif kind == "sample":
            pair.sample_window(*arguments)
        else:
            pair.buffer.clear()
            pair.model.clear()


@settings(max_examples=200)
@given(histories())
def test_a_random_history_leaves_what_the_model_holds(history):
    pair, steps = history
    # These kinds are counted from now on, while the ring changes; others only when they are first drawn.
    for num_steps in (1, 2, 3):
        if num_steps <= pair.model.max_length:
            pair.sample_window(Window(num_steps))
    for step in steps:
        run(pair, [step])
        pair.check_all()
    for num_steps in (None, *range(1, pair.model.max_length + 1)):
        pair.sample_window(num_steps and Window(num_steps))
        pair.check_get(num_steps or 1)
    pair.check_all()


@settings(max_examples=8)
@given(histories(), st.integers(1, 5), st.integers(1, 3))
def test_passes_visit_what_the_model_lists(history, num_steps, shift):
    """Building datasets takes the time, so that few are built and each is iterated after every step."""
    pair, steps = history
    num_steps = min(num_steps, pair.model.max_length)
    pair.buffer = TFUniformReplayBuffer(
        SPECS[pair.kind], pair.model.num_streams, pair.model.max_length, dataset_window_shift=shift, seed=1
    )
    passes = pair.build_passes(num_steps)
    for step in steps:
        run(pair, [step])
        pair.check_passes(passes, num_steps, shift)
    stats = pair.buffer.stats()
    assert (stats.sampled, stats.skipped) == (pair.model.sampled, 0)


@settings(max_examples=300)
@given(histories(), st.data())
def test_windows_of_all_kinds_are_those_that_the_model_lists(history, data):
    """Counts of three kinds are kept current from the start, while the ring changes."""
    pair, steps = history
    kinds = data.draw(st.lists(windows(pair.model.max_length), min_size=3, max_size=3))
    for step in [None, *steps]:
        if step is not None:
            run(pair, [step])
        for kind in kinds:
            pair.sample_window(kind)


@settings(max_examples=12)
@given(histories(), st.data())
def test_windows_of_all_kinds_come_from_a_graph_too(history, data):
    """Each iterator has its own graph: random draws, and a pass over every window."""
    pair, steps = history
    kind = data.draw(windows(pair.model.max_length))
    draws = pair.buffer.as_dataset(None, window=kind)
    ordered = pair.buffer.as_dataset(window=kind, single_deterministic_pass=True)
    for step in steps:
        run(pair, [step])
        eligible = [cut.padded(kind) for cut in pair.model.eligible(kind)]
        if not eligible:
            for dataset in (draws, ordered):
                with pytest.raises(tf.errors.InvalidArgumentError):
                    next(iter(dataset))
            continue
        assert [pair.masked(*element) for element in ordered] == eligible
        for items, info in draws.take(5):
            assert pair.masked(items, info) in eligible
            np.testing.assert_allclose(info.probabilities, 1 / len(eligible), rtol=1e-6)
            assert int(info.keys) == int(info.ids[kind.burn_in])


def test_windows_overwritten_during_an_ordered_pass_are_skipped_and_counted(caplog):
    buffer = TFUniformReplayBuffer(VALUE, 1, 300)
    buffer.add_sequence(np.arange(300)[None])
    windows = iter(buffer.as_dataset(single_deterministic_pass=True))
    seen = [int(next(windows)[0])]
    buffer.add_sequence(np.arange(1000, 1200)[None])
    seen += [int(items) for items, _ in windows]
    # What was gathered before the write comes through; of the rest, the ids below 200 are gone.
    assert seen == [*range(len(seen) - 100), *range(200, 300)]
    assert len(seen) < 300
    assert buffer.stats().skipped == 300 - len(seen)
    assert "overwritten before an ordered pass reached them" in caplog.text
