"""Offline data: from a folder into buffers and tables, back onto a disk, checked, and straight into batches.

A call begins with the path: opening the folder, and building the tf.data pipeline, take some
20 ms whatever its size, of us and of TFDS. Passes over a folder that was opened before stand
beside. A contender that would take too long gets some of the episodes; its name says how many
steps.
"""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import h5py
import tensorflow_datasets as tfds
from datasets import eagerly
from measure import Bar, Contender, Scale, interleave, row
from offline_data import Offline, floats, pixels
from offline_peers import Pushed, RldsWriter, decoding, encoded_pictures, read_and_discard, read_records, undecoded

from replayfeed.buffers import ReplayBuffer, ReverbEpisodicReplayBuffer, ReverbReplayBuffer, TFUniformReplayBuffer
from replayfeed.pipelines import Episodes, fill, load_rlds
from replayfeed.pipelines.rlds_check import validate_rlds
from replayfeed.pipelines.rlds_open import open_source
from replayfeed.pipelines.rlds_write import write_rlds

_OURS, _READING, _RECORDS = "replayfeed", "TFDS SkipDecoding, thrown away", "TFRecord bytes alone"
_OURS_OPEN, _READING_OPEN = f"{_OURS}, opened before", f"{_READING}, opened before"
_BATCH = 256
# Calls take tenths of a second and more, and each window has one of them to warm up.
_REPEATS = 7
# Of the contenders that make some thousand steps a second.
_PUSHED_EPISODES, _SERVED_EPISODES, _WRITTEN_EPISODES = 4, 40, 20
# Writers and servers of one process wait for each other when they are taken down, so they live until it exits.
_kept: list[Any] = []


def offline_floats(scale: Scale) -> list[dict[str, Any]]:
    data = floats(scale)
    with tempfile.TemporaryDirectory() as folder:
        path = data.write(folder)
        episodes = load_rlds(path, layout="transition")
        buffer = _buffer_of(episodes, data.transitions)
        pushed = Pushed(tfds.builder_from_directory(path), _some(data, _PUSHED_EPISODES), data.num_steps, whole=False)
        _kept.append(pushed)
        pushing = _pushing(pushed, data)
        contenders = [
            Contender(_OURS, lambda: fill(buffer, load_rlds(path, layout="transition"), progress=False), data.steps),
            pushing,
            Contender(_OURS_OPEN, lambda: fill(buffer, episodes, progress=False), data.steps),
            *_reading(path, data),
        ]
        samples = interleave(contenders, _slower(scale))
    measure = f"folder to in-process buffer, {_told(data)}"
    return [
        row(measure, "steps/s", _OURS, _from_path(samples), [Bar(_READING, 0.5), Bar(pushing.name, 100)]),
        _opened_before(measure, samples),
    ]


def offline_served(scale: Scale) -> list[dict[str, Any]]:
    return [_served(scale, whole=False)]


def offline_served_episodes(scale: Scale) -> list[dict[str, Any]]:
    return [_served(scale, whole=True)]


def offline_pixels(scale: Scale) -> list[dict[str, Any]]:
    data = pixels(scale)
    with tempfile.TemporaryDirectory() as folder:
        path = data.write(folder)
        buffer = _buffer_of(load_rlds(path, layout="transition"), data.transitions)
        pictures = decoding(encoded_pictures(undecoded(tfds.builder_from_directory(path))))
        alone = "tf.io.decode_png alone"
        contenders = [
            Contender(_OURS, lambda: fill(buffer, load_rlds(path, layout="transition"), progress=False), data.steps),
            Contender(alone, lambda: sum(1 for _ in pictures), data.steps),
            *_reading(path, data),
        ]
        samples = interleave(contenders, _slower(scale))
    return [row(f"folder to in-process buffer, {_told(data)}", "steps/s", _OURS, samples, [Bar(alone, 0.8)])]


def offline_write(scale: Scale) -> list[dict[str, Any]]:
    return [_writing(scale, floats(scale), _WRITTEN_EPISODES)]


def offline_write_pixels(scale: Scale) -> list[dict[str, Any]]:
    return [_writing(scale, pixels(scale), _WRITTEN_EPISODES // 10)]


def offline_validate(scale: Scale) -> list[dict[str, Any]]:
    data = floats(scale)
    with tempfile.TemporaryDirectory() as folder:
        path = data.write(folder)
        opened = open_source(path, fields="all")
        contenders = [
            Contender(_OURS, lambda: validate_rlds(path, progress=False), data.steps),
            Contender(_OURS_OPEN, lambda: validate_rlds(opened, progress=False), data.steps),
            *_reading(path, data),
        ]
        samples = interleave(contenders, _slower(scale))
    measure = f"validate_rlds, {_told(data)}"
    from_path = row(measure, "steps/s", _OURS, _from_path(samples), [Bar(_READING, 0.5)])
    return [from_path, _opened_before(measure, samples)]


def offline_as_dataset(scale: Scale) -> list[dict[str, Any]]:
    """A call takes as many batches as a pass has: reading comes in blocks, of which a single batch tells nothing."""
    data = floats(scale)
    num_batches = max(1, data.transitions // _BATCH)
    with tempfile.TemporaryDirectory() as folder:
        episodes = load_rlds(data.write(folder), layout="transition")
        buffer = _buffer_of(episodes, data.transitions)
        fill(buffer, episodes, progress=False)
        in_process = "as_dataset of an in-process buffer"
        contenders = [
            _draining(_OURS, episodes.as_dataset(_BATCH), num_batches),
            _draining(in_process, buffer.as_dataset(_BATCH), num_batches),
        ]
        samples = interleave(contenders, _slower(scale))
    measure = f"Episodes.as_dataset from disk, batch {_BATCH}, {_told(data)}"
    return [row(measure, "batches/s", _OURS, samples, [])]


def offline_hdf5(scale: Scale) -> list[dict[str, Any]]:
    data = floats(scale)
    with tempfile.TemporaryDirectory() as folder:
        path = data.write_hdf5(folder)
        contenders = [
            Contender(_OURS, _filling(load_rlds(path, layout="transition"), data.transitions), data.steps),
            Contender("h5py, arrays read and thrown away", lambda: _read_hdf5(path), data.steps),
        ]
        samples = interleave(contenders, _slower(scale))
    return [row(f"HDF5 to in-process buffer, {_told(data)}", "steps/s", _OURS, samples, [])]


def _reading(path: str, data: Offline) -> list[Contender]:
    stored = undecoded(tfds.builder_from_directory(path))
    return [
        Contender(_READING, lambda: read_and_discard(undecoded(tfds.builder_from_directory(path))), data.steps),
        Contender(_READING_OPEN, lambda: read_and_discard(stored), data.steps),
        Contender(_RECORDS, lambda: read_records(path), data.steps),
    ]


def _from_path(samples: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: one for name, one in samples.items() if name not in (_OURS_OPEN, _READING_OPEN)}


def _opened_before(measure: str, samples: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The same passes without what begins each of them, as they are over larger folders."""
    passes = {name: samples[name] for name in (_OURS_OPEN, _READING_OPEN)}
    return row(f"{measure}, opened before", "steps/s", _OURS_OPEN, passes, [Bar(_READING_OPEN, 0.5, aim=True)])


def _served(scale: Scale, *, whole: bool) -> dict[str, Any]:
    data = floats(scale)
    num_episodes = _some(data, _SERVED_EPISODES)
    with tempfile.TemporaryDirectory() as folder:
        path = data.write(folder)
        builder = tfds.builder_from_directory(path)
        episodes = load_rlds(path, layout="trajectory", limit=num_episodes)
        steps = num_episodes * data.num_steps
        ours = _served_buffer(episodes, num_episodes, data.num_steps, whole=whole)
        pushed = [
            Pushed(builder, _some(data, _PUSHED_EPISODES), data.num_steps, whole=one)
            for one in ((False, True) if whole else (False,))
        ]
        _kept.extend((ours, *pushed))
        pushing = [_pushing(one, data) for one in pushed]
        contenders = [Contender(_OURS, lambda: fill(ours, episodes, progress=False), steps), *pushing]
        samples = interleave(contenders, _slower(scale))
    # The bar's number is TF-Agents' usual way, windows of two; its way for whole episodes is quicker.
    bars = [Bar(pushing[0].name, 30 if whole else 4), *(Bar(one.name, 30, aim=True) for one in pushing[1:])]
    items = "whole episodes" if whole else "2 steps"
    measure = f"folder to Reverb, items of {items}, without the scan mirror, {steps:,} steps"
    return row(measure, "steps/s", _OURS, samples, bars)


def _served_buffer(episodes: Episodes, num_episodes: int, num_steps: int, *, whole: bool) -> ReplayBuffer:
    spec = episodes.element_spec
    if whole:
        return ReverbEpisodicReplayBuffer.local(
            spec, max_size=num_episodes, max_episode_length=num_steps, scannable=False
        )
    return ReverbReplayBuffer.local(spec, max_size=num_episodes * num_steps, sequence_length=2, scannable=False)


def _writing(scale: Scale, data: Offline, num_episodes: int) -> dict[str, Any]:
    num_episodes = _some(data, num_episodes)
    source, steps = data.source(num_episodes), num_episodes * data.num_steps
    theirs = RldsWriter(data, num_episodes)

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_rlds(source, f"{folder}/bench", name="bench", progress=False)

    contenders = [Contender(_OURS, write, steps), Contender("rlds EpisodeWriter", theirs.write, steps)]
    samples = interleave(contenders, _slower(scale))
    measure = f"write_rlds, {data.name}, {steps:,} steps"
    return row(measure, "steps/s", _OURS, samples, [Bar("rlds EpisodeWriter", 1)])


def _filling(episodes: Episodes, capacity: int) -> Any:
    buffer = _buffer_of(episodes, capacity)
    return lambda: fill(buffer, episodes, progress=False)


def _buffer_of(episodes: Episodes, capacity: int) -> TFUniformReplayBuffer:
    return TFUniformReplayBuffer(episodes.element_spec, batch_size=1, max_length=capacity)


def _pushing(pushed: Pushed, data: Offline) -> Contender:
    steps = _some(data, _PUSHED_EPISODES) * data.num_steps
    items = "whole episodes" if pushed.whole else "2 steps"
    return Contender(f"push_rlds_to_reverb, items of {items}, {steps:,} steps", pushed.push, steps, pushed.flush)


def _draining(name: str, dataset: Any, num_batches: int) -> Contender:
    take = eagerly(dataset)

    def drain() -> None:
        for _ in range(num_batches):
            take()

    return Contender(name, drain, num_batches)


def _read_hdf5(path: str) -> int:
    with h5py.File(path) as file:
        return sum(len(file[name][...]) for name in file)


def _slower(scale: Scale) -> Scale:
    return dataclasses.replace(scale, repeats=min(scale.repeats, _REPEATS))


def _some(data: Offline, num_episodes: int) -> int:
    return min(num_episodes, data.num_episodes)


def _told(data: Offline) -> str:
    return f"{data.name}, {data.steps:,} steps"
