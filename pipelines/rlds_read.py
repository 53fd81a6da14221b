"""Episodes from RLDS datasets: a TFDS folder on disk, or a `tf.data.Dataset` of episodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path, leaves_with_paths

from . import rlds_folder
from .episode_source import EpisodeSource, raw_episodes
from .episodes import Episodes, OnBadEpisode
from .layouts import Layout
from .rlds_steps import INVALID, LOADED_FIELDS, STEPS, check_step_spec


def load_rlds(
    path_or_dataset: str | os.PathLike[str] | tf.data.Dataset,
    *,
    split: str | None = None,
    layout: Layout,
    on_bad_episode: OnBadEpisode = "error",
) -> Episodes:
    """The episodes of an RLDS dataset as frames of a buffer; nothing is read yet.

    An episode of `N + 1` steps has `N` transitions. Terminal and truncated are kept apart:
    `is_terminal` decides, the transition into a terminal step gets discount 0, every other
    one the stored discount, or 1 when there is none. A last step's action, reward and
    discount are never used. `layouts.py` tells what the frames hold.

    What an episode may have, and what becomes of it:

    | finding | `'error'` | `'skip'` | `'repair'` |
    | --- | --- | --- | --- |
    | no step, or one step, so no transition | dropped | dropped | dropped |
    | last step without `is_last`, first without `is_first` | loaded: the nesting decides | loaded | loaded |
    | `is_terminal` or `is_last` before the last step | error | dropped | ends there |
    | `is_first` after the first step | error | dropped | ends before it |
    | flagged `invalid`; fields of different lengths; reward or discount not finite | error | dropped | dropped |

    All that is dropped or repaired is counted and named in the report. It is found before a
    frame of that episode is delivered.

    Args:
      path_or_dataset: the folder of a TFDS dataset (the one that holds `features.json`), which
        needs `replayfeed[rlds]`; or a dataset of episodes, `{'steps': ..., ...}`, where `steps`
        is a dataset of steps or a nest of arrays `[N + 1, ...]`.
      split: of a folder, by default `'train'`; TFDS's slices (`'train[:10]'`) work.
      layout: `'trajectory'` or `'transition'`.
      on_bad_episode: see above.

    Raises:
      TypeError: `path_or_dataset` is neither.
      FileNotFoundError: the folder is no TFDS dataset.
      ImportError: TensorFlow Datasets, or for trajectories TF-Agents, cannot be imported.
      ValueError: `split` is given with a dataset, or is unknown.
      ValueError: the elements have no steps, the steps lack a field, or a field has no fixed width.
      ValueError: `layout` or `on_bad_episode` is unknown.

    >>> steps = {"observation": [0, 1, 2], "action": [10, 11, 0], "reward": [0.5, 1.0, 0.0],
    ...          "is_first": [True, False, False], "is_last": [False, False, True], "is_terminal": [False, False, True]}
    >>> episodes = load_rlds(tf.data.Dataset.from_tensors({"steps": steps}), layout="transition")
    >>> for episode in episodes:
    ...     print(episode["observation"], episode["action"], episode["discount"], episode["next_observation"])
    [0 1] [10 11] [1. 0.] [1 2]
    """
    if isinstance(path_or_dataset, tf.data.Dataset):
        if split is not None:
            raise ValueError(f"split={split!r} is for folders; a tf.data.Dataset is one split already.")
        source = _dataset_source(path_or_dataset)
    elif isinstance(path_or_dataset, str | os.PathLike):
        source = rlds_folder.folder_source(os.fspath(path_or_dataset), "train" if split is None else split)
    else:
        raise TypeError(
            "load_rlds takes the folder of a TFDS dataset or a tf.data.Dataset of episodes, "
            f"got {type(path_or_dataset).__name__}."
        )
    return Episodes(source, layout, on_bad_episode)


def _dataset_source(dataset: tf.data.Dataset) -> EpisodeSource:
    name = "tf.data.Dataset"
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or STEPS not in spec:
        found = sorted(spec) if isinstance(spec, Mapping) else spec
        raise ValueError(f"{name}: expected episodes, dicts with 'steps', got {found}.")
    nested = isinstance(spec[STEPS], tf.data.DatasetSpec)
    if not nested:
        _check_stacked(name, spec[STEPS])
    step_spec = spec[STEPS].element_spec if nested else tf.nest.map_structure(_spec_of_one, spec[STEPS])
    if not isinstance(step_spec, Mapping):
        raise ValueError(f"{name}: expected steps that are dicts with 'observation', ..., got {step_spec}.")
    loaded = {field: step_spec[field] for field in LOADED_FIELDS if field in step_spec}
    check_step_spec(name, loaded)

    def select(episode: Mapping[str, Any]) -> dict[str, Any]:
        steps = episode[STEPS]
        columns = _stack(steps, loaded) if nested else {field: steps[field] for field in loaded}
        return {STEPS: columns, INVALID: tf.cast(tf.reshape(episode.get(INVALID, False), []), tf.bool)}

    arrays = dataset.map(select, num_parallel_calls=1).prefetch(1)
    cardinality = int(dataset.cardinality())
    return EpisodeSource(
        name,
        loaded,
        lambda seed: raw_episodes(arrays),
        num_episodes=cardinality if cardinality >= 0 else None,
        not_loaded=tuple(sorted(set(step_spec) - set(loaded))),
    )


def _stack(steps: tf.data.Dataset, loaded: Mapping[str, Nest]) -> dict[str, Nest]:
    """The steps as one nest of arrays `[N + 1, ...]`; no steps give arrays of length 0."""
    chosen = steps.map(lambda step: {field: step[field] for field in loaded})
    known = steps.cardinality()
    endless = tf.constant(tf.data.INFINITE_CARDINALITY, tf.int64)
    tf.debugging.assert_none_equal(known, endless, message="an episode has infinitely many steps")
    num_steps = tf.cond(known >= 0, lambda: known, lambda: steps.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1))
    # The exact number: a batch that is only large enough would be allocated where tf.data fuses map and batch.
    none = tf.nest.map_structure(lambda spec: tf.zeros([0, *spec.shape], spec.dtype), dict(loaded))
    return chosen.batch(tf.maximum(num_steps, 1)).reduce(none, lambda _, batch: batch)


def _check_stacked(name: str, steps: Any) -> None:
    for path, spec in leaves_with_paths(steps, ()):
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0:
            raise ValueError(
                f"{name}: steps field {field_path(path)!r}: expected the steps of an episode, [N + 1, ...], got one "
                "number; stack the steps of each episode."
            )


def _spec_of_one(spec: Any) -> Any:
    """The spec of one step from that of stacked steps, where it has a first axis."""
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec(spec.shape[1:], spec.dtype)
    return spec
