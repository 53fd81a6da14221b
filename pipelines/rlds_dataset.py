"""Reads a `tf.data.Dataset` of RLDS episodes an episode at a time, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path, leaves_with_paths

from .episode_source import INDEX, METADATA, EpisodeSource, RawEpisode, raw_episodes
from .field_rules import apply_rules
from .rlds_fields import Choice, FieldPlan, PlannedField, plan_fields
from .rlds_steps import INVALID, STEPS

# Episodes among which a shuffled reading chooses: few, since nothing tells how large they are.
_SHUFFLED_EPISODES = 32


def dataset_source(dataset: tf.data.Dataset, wanted: Choice) -> EpisodeSource:
    """The episodes of a dataset whose elements are `{'steps': ..., ...}`.

    Args:
      dataset: `steps` is a dataset of steps, or a nest of arrays `[N + 1, ...]`.
      wanted: of its steps.

    Raises:
      ValueError: the elements have no steps, or a field cannot be loaded.
    """
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
    plan = plan_fields(name, step_spec, wanted)
    metadata_spec = {
        key: value
        for key, value in spec.items()
        if key not in (STEPS, INVALID) and all(_is_plain(leaf) for leaf in tf.nest.flatten(value))
    }

    @tf.autograph.experimental.do_not_convert
    def select(index: tf.Tensor, episode: Mapping[str, Any]) -> dict[str, Any]:
        steps = episode[STEPS]
        return {
            STEPS: _stack(steps, plan) if nested else plan.select(steps),
            INVALID: tf.cast(tf.reshape(episode.get(INVALID, False), []), tf.bool),
            METADATA: {key: episode[key] for key in metadata_spec},
            INDEX: index,
        }

    def read(seed: int | None) -> Iterator[RawEpisode]:
        numbered = dataset.enumerate()
        if seed is not None:
            numbered = numbered.shuffle(_SHUFFLED_EPISODES, seed, reshuffle_each_iteration=False)
        return raw_episodes(numbered.map(select, num_parallel_calls=1).prefetch(1))

    cardinality = int(dataset.cardinality())
    return EpisodeSource(
        name,
        plan.step_spec,
        read,
        num_episodes=cardinality if cardinality >= 0 else None,
        not_loaded=plan.not_loaded,
        metadata_spec=metadata_spec,
    )


def _stack(steps: tf.data.Dataset, plan: FieldPlan) -> dict[str, Nest]:
    """The steps as one nest of arrays `[N + 1, ...]`; no steps give arrays of length 0."""
    chosen = steps.map(lambda step: plan.select(step, _load_step))
    known = steps.cardinality()
    endless = tf.constant(tf.data.INFINITE_CARDINALITY, tf.int64)
    tf.debugging.assert_none_equal(known, endless, message="an episode has infinitely many steps")
    num_steps = tf.cond(known >= 0, lambda: known, lambda: steps.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1))
    if any(not spec.shape.is_fully_defined() for spec in tf.nest.flatten(plan.step_spec)):
        return _stack_ragged(chosen, num_steps)
    # The exact number: a batch that is only large enough would be allocated where tf.data fuses map and batch.
    none = tf.nest.map_structure(lambda spec: _zeros([0, *spec.shape], spec.dtype), plan.step_spec)
    return chosen.batch(tf.maximum(num_steps, 1)).reduce(none, lambda _, batch: batch)


def _stack_ragged(steps: tf.data.Dataset, num_steps: tf.Tensor) -> dict[str, Nest]:
    batches = steps.ragged_batch(tf.maximum(num_steps, 1))
    none = tf.nest.map_structure(_none_of, batches.element_spec)
    # Not reduce, as of other steps: its state takes no ragged tensor.
    return batches.concatenate(tf.data.Dataset.from_tensors(none)).take(1).get_single_element()


def _none_of(spec: Any) -> Any:
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = [0 if size is None else size for size in spec.shape[spec.ragged_rank + 1 :]]
        values: Any = _zeros([0, *inner], spec.dtype)
        for _ in range(spec.ragged_rank):
            values = tf.RaggedTensor.from_row_splits(values, tf.zeros([1], spec.row_splits_dtype))
        return values
    return _zeros([0, *spec.shape[1:]], spec.dtype)


def _zeros(shape: Sequence[int], dtype: tf.DType) -> tf.Tensor:
    return tf.fill(shape, "") if dtype == tf.string else tf.zeros(shape, dtype)


def _load_step(leaf: PlannedField, value: Any) -> Any:
    """One step's value, through rules that are made for columns."""
    if not leaf.rules:
        return value
    column = tf.expand_dims(value, 0)
    return apply_rules(leaf.rules, leaf.path, column)[0]


def _is_plain(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec)


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
    if isinstance(spec, tf.RaggedTensorSpec):
        if spec.ragged_rank > 1:
            return tf.RaggedTensorSpec(spec.shape[1:], spec.dtype, spec.ragged_rank - 1, spec.row_splits_dtype)
        return tf.TensorSpec(spec.shape[1:], spec.dtype)
    return spec
