"""Plans of passes as a dataset: each made when the pass reaches it, in an order that a saved iterator goes on with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import tensorflow as tf

from .callbacks import call_weakly
from .nests import Array

_Planner = TypeVar("_Planner")


def ordered_plan(
    planner: _Planner, visit: Callable[[_Planner], tuple[Array, ...]], num_columns: int
) -> tf.data.Dataset:
    """One plan, in the order in which `visit` gives it.

    Args:
      planner: what `visit` is called with; kept alive by the dataset.
      visit: gives `num_columns` arrays int64 `[m]`: what the pass visits.
      num_columns: how many.

    Returns:
      A dataset of `(*columns, chance)`: int64 `[m]`, and 1 as float32 `[]`.
    """

    def make(planner: _Planner, _: Array) -> tuple[Array, ...]:
        return *visit(planner), np.array(1, np.float32)

    return _plans(tf.data.Dataset.range(1), planner, make, num_columns)


def shuffled_plans(
    planner: _Planner,
    visit: Callable[[_Planner], tuple[Array, ...]],
    num_columns: int,
    num_plans: int,
    seed: int | None,
) -> tf.data.Dataset:
    """As many plans, each a permutation of its own of what `visit` gives when the pass reaches it.

    The random numbers come from a dataset, not from a generator in Python: its place is in the state of an iterator,
    so that where one is saved and restored the later passes have the orders that they would have had.

    Args:
      planner: as for `ordered_plan`.
      visit: as for `ordered_plan`.
      num_columns: as for `ordered_plan`.
      num_plans: how many passes.
      seed: of the orders; each iterator has others, and equal seeds repeat. None: they differ in each process.

    Returns:
      A dataset of `(*columns, chance)`: int64 `[m]`, and 1 / m as float32 `[]`.
    """

    def make(planner: _Planner, *entropy: Array) -> tuple[Array, ...]:
        columns = visit(planner)
        # The index keeps passes apart whose random numbers, of 32 bits, happen to be equal.
        order = np.random.default_rng([int(each) for each in entropy]).permutation(len(columns[0]))
        return *(column[order] for column in columns), np.array(1 / len(order), np.float32)

    numbers = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True).enumerate().take(num_plans)
    return _plans(numbers, planner, make, num_columns)


def _plans(
    numbers: tf.data.Dataset, planner: _Planner, make: Callable[..., tuple[Array, ...]], num_columns: int
) -> tf.data.Dataset:
    @tf.autograph.experimental.do_not_convert
    def plan(*numbers: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # This function holds the planner, and the dataset holds this function.
        *columns, chance = call_weakly(planner, make, numbers, [tf.int64] * num_columns + [tf.float32])
        return *(tf.ensure_shape(column, [None]) for column in columns), tf.ensure_shape(chance, [])

    return numbers.map(plan)
