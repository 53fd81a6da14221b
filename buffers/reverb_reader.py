"""What a draw from a Reverb table becomes: `(items, info)`, alone, in batches, in a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .base import BufferInfo
from .callbacks import call_weakly
from .nests import Nest
from .reverb_items import ItemPart
from .reverb_knobs import SamplerKnobs
from .reverb_layout import NO_ID
from .reverb_layouts import Layout
from .reverb_link import ServerLink
from .reverb_priorities import TablePriorities
from .reverb_rows import RowDrawer
from .reverb_source import ItemDrawer, TableSource
from .reverb_wait import WaitStage
from .reverb_weights import ServedWeights

Preprocess = Callable[[Any], Any]

# Items of unknown length are mixed over so many windows, as in TF-Agents.
_SHUFFLE_WINDOWS = 100


class TableReader:
    """Draws items of one table.

    Args:
      link: the table.
      layout: how a frame lies in its columns.
      item_length: frames in an item, `L`; None where items differ.
      knobs: Reverb's settings.
      source: makes Reverb's datasets.
      stage: waits for the table.
      guard: what to put over a dataset so that it fails when the server is gone.
      pack: leaves to the items' nest.
      weights: of what is drawn.
      priorities: are told what is delivered.
      burn_in: frames of an item before the drawn one.
      keeps: rows of an unfinished draw are kept for the next one.
    """

    def __init__(
        self,
        link: ServerLink,
        layout: Layout,
        item_length: int | None,
        knobs: SamplerKnobs,
        source: TableSource,
        stage: WaitStage,
        guard: Callable[..., tf.data.Dataset],
        pack: Callable[[Sequence[Any]], Nest],
        weights: ServedWeights,
        priorities: TablePriorities,
        *,
        burn_in: int,
        keeps: bool,
    ) -> None:
        self._link = link
        self._layout = layout
        self._length = item_length
        self._knobs = knobs
        self._source = source
        self._stage = stage
        self._guard = guard
        self._pack = pack
        self._weights = weights
        self._priorities = priorities
        self._burn_in = burn_in
        self._rows = RowDrawer(ItemDrawer(link, source), stage, keeps=keeps)
        self._deliver_functions: dict[Any, Callable[[Any], tuple[Nest, BufferInfo]]] = {}

    def random(
        self,
        sample_batch_size: int | None,
        part: ItemPart,
        num_parallel_calls: int | None,
        preprocess: Preprocess | None,
    ) -> tf.data.Dataset:
        """A dataset of `(items, info)` without end (but for the knob `max_samples`).

        In tables that others made, a part shorter than the item asks for windows side by side, as in TF-Agents.
        """
        raw = self._endless(sample_batch_size, num_parallel_calls)
        num_steps = part.num_frames
        if not self._layout.has_ids and num_steps is not None and num_steps != self._length:
            per_item = self._length // num_steps if self._length else _SHUFFLE_WINDOWS
            windows = self._whole_items(raw, num_steps, num_parallel_calls, preprocess)
            rows = _batched(windows.shuffle(per_item * (sample_batch_size or 1)), sample_batch_size)
            return self._weighed(self._guard(rows), sample_batch_size)
        if preprocess is None:
            batches = self._guard(_batched(raw, sample_batch_size))
            return batches.map(
                lambda sample: self._finished(self.deliver(sample, sample_batch_size, part), sample_batch_size)
            )
        rows = raw.map(lambda sample: self._preprocessed(sample, part, preprocess), num_parallel_calls)
        return self._weighed(self._guard(_batched(rows, sample_batch_size)), sample_batch_size)

    def in_order(self, sample_batch_size: int | None, part: ItemPart, preprocess: Preprocess | None) -> tf.data.Dataset:
        """One pass of a table that removes what it delivers in a fixed order; what is in it at the first `next`."""

        def size(reader: TableReader) -> np.int64:
            info = reader._link.info()
            if info.max_times_sampled != 1:
                raise ValueError(
                    f"table {info.name!r} removes nothing that it delivers (max_times_sampled="
                    f"{info.max_times_sampled}): an ordered pass would give its first item for ever; make the table "
                    "with scannable=True."
                )
            return np.int64(info.current_size)

        def one_pass(_: tf.Tensor) -> tf.data.Dataset:
            num = call_weakly(self, size, [], tf.int64)
            num.set_shape([])
            return self._source.dataset(in_order=True).take(num)

        raw = self._stage.when_ready(1).flat_map(one_pass)
        if self._layout.has_ids:
            rows = raw.map(lambda sample: self._preprocessed(sample, part, preprocess or (lambda items: items)))
        else:
            rows = self._whole_items(raw, part.num_frames, None, preprocess)
        # The last batch may be smaller: what it holds is gone from the table.
        rows = _batched(rows, sample_batch_size, drop_remainder=False)
        return self._weighed(self._guard(rows, gives_up=False), sample_batch_size)

    def sample(self, num: int | None, part: ItemPart) -> tuple[Nest, BufferInfo]:
        """`num` rows at once, leaves `[num, ...]`; one, `[1, ...]`, that is no batch where it is None.

        Raises:
          WaitTimeoutError: they did not come within the timeout.
          ValueError: items differ in length, and several are wanted whole.
        """
        num_rows = num or 1
        if not self._layout.has_ids:
            if part.num_frames is not None and part.num_frames != self._length:
                return self._finished(self._sample_windows(num_rows, part.num_frames), num)
            if self._length is None and num_rows > 1:
                raise ValueError("the table's items differ in length: give num_steps, or sample one at a time.")
        drawn = self._rows.draw(num_rows, self._rows.watch())
        one = drawn[0] if len(drawn) == 1 else tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *drawn)
        return self._deliver_function(num, part, one)(one)

    def _sample_windows(self, num: int, num_steps: int) -> tuple[Nest, BufferInfo]:
        """`num` drawn items, of each one of the windows side by side in it."""
        watch, rng = self._rows.watch(), np.random.default_rng()
        rows: list[tuple[Nest, BufferInfo]] = []
        longest = 0
        while len(rows) < num:
            (sample,) = self._rows.draw(1, watch)
            longest = max(longest, int(sample.data[0].shape[1]))
            num_windows = int(sample.data[0].shape[1]) // num_steps
            if not num_windows:
                watch.tell_or_raise(
                    f"no window of {num_steps} frames: items drawn so far have up to {longest}; waiting"
                )
                continue
            first = int(rng.integers(num_windows)) * num_steps
            items, info = self.deliver(
                sample._replace(data=[column[:, first : first + num_steps] for column in sample.data]), 1, ItemPart()
            )
            chance = self._window_chance(info.probabilities, num_windows)
            carried = info.weights if self._length else self._weights.of_windows(info.weights, num_windows)
            rows.append((items, info._replace(probabilities=chance, weights=carried)))
        return tf.nest.map_structure(lambda *leaves: tf.concat(leaves, 0), *rows)

    def _window_chance(self, item_chance: tf.Tensor, num_windows: Any) -> tf.Tensor:
        """The chance of one of an item's windows; NaN where items differ in length, and Reverb does not tell how."""
        return item_chance * np.nan if self._length is None else item_chance / tf.cast(num_windows, tf.float32)

    def deliver(self, sample: Any, batch: int | None, part: ItemPart) -> tuple[Nest, BufferInfo]:
        """`(items, info)` from a sample of Reverb's, in the graph or eagerly; `weights` as rows carry them.

        Args:
          sample: columns `[B, L, ...]`, or `[L, ...]` where `batch` is None.
          batch: `B`.
          part: the frames of each item that are wanted.
        """
        columns, first = list(sample.data), part.first
        drawn = columns[0][..., self._burn_in, :] if self._priorities.needs_ids else None
        outer: list[int] = [] if batch is None else [batch]
        if not part.has_time:
            columns = [column[first] if batch is None else column[:, first] for column in columns]
        else:
            if part.num_frames is not None and part.num_frames != self._length:
                wanted = slice(first, first + part.num_frames)
                columns = [column[wanted] if batch is None else column[:, wanted] for column in columns]
            length = columns[0].shape[len(outer)]
            outer.append(-1 if length is None else length)
        ids, leaves = self._layout.unpack(columns, outer)
        self._priorities.delivered(sample.info, drawn)
        return self._pack(leaves), self._info(ids, sample.info)

    def _info(self, ids: tf.Tensor, info: Any) -> BufferInfo:
        return BufferInfo(
            ids=ids,
            probabilities=tf.cast(info.probability, tf.float32),
            keys=tf.bitcast(info.key, tf.int64),
            weights=self._weights.carried(info),
            mask=ids != NO_ID if self._layout.has_ids else tf.ones_like(ids, tf.bool),
        )

    def _finished(self, row: tuple[Nest, BufferInfo], batch: int | None) -> tuple[Nest, BufferInfo]:
        """The batch (None: single element) with its weights in place of what its rows carried."""
        items, info = row
        return items, info._replace(weights=self._weights.finished(info.weights, is_batch=batch is not None))

    def _weighed(self, rows: tf.data.Dataset, batch: int | None) -> tf.data.Dataset:
        return rows.map(lambda items, info: self._finished((items, info), batch))

    def _endless(self, sample_batch_size: int | None, num_parallel_calls: int | None) -> tf.data.Dataset:
        if self._knobs.max_samples != -1:
            return self._stage.endless(self._source.lasting).take(self._knobs.max_samples)
        cycle = min(sample_batch_size or 1, self._knobs.max_cycle_length)
        if cycle == 1:
            return self._stage.endless(self._source.lasting)
        return tf.data.Dataset.range(cycle).interleave(
            lambda _: self._stage.endless(self._source.lasting),
            cycle_length=cycle,
            num_parallel_calls=num_parallel_calls or tf.data.AUTOTUNE,
            deterministic=False,
        )

    def _preprocessed(self, sample: Any, part: ItemPart, preprocess: Preprocess) -> tuple[Nest, BufferInfo]:
        """One item through the caller's function: the whole item goes in, as in TF-Agents."""
        items, info = self.deliver(sample, None, ItemPart())
        items, first = preprocess(items), part.first
        if not part.has_time:
            items = tf.nest.map_structure(lambda leaf: leaf[first], items)
            return items, info._replace(ids=info.ids[first], mask=info.mask[first])
        if part.num_frames is not None and part.num_frames != self._length:
            wanted = slice(first, first + part.num_frames)
            items = tf.nest.map_structure(lambda leaf: leaf[wanted], items)
            info = info._replace(ids=info.ids[wanted], mask=info.mask[wanted])
        return items, info

    def _whole_items(
        self,
        raw: tf.data.Dataset,
        num_steps: int | None,
        num_parallel_calls: int | None,
        preprocess: Preprocess | None,
    ) -> tf.data.Dataset:
        """Items without a `B` axis; with a shorter `num_steps` each cut into windows side by side, as in TF-Agents."""

        def whole(sample: Any) -> tuple[Nest, BufferInfo]:
            items, info = self.deliver(sample, None, ItemPart())
            return (items if preprocess is None else preprocess(items)), info

        dataset = raw.map(whole, num_parallel_calls)
        if num_steps is None or num_steps == self._length:
            return dataset

        def cut(items: Nest, info: BufferInfo) -> tuple[Nest, BufferInfo]:
            num_rows = tf.shape(info.ids)[0] // num_steps
            items, ids, mask = tf.nest.map_structure(
                lambda leaf: tf.reshape(leaf[: num_rows * num_steps], [num_rows, num_steps, *leaf.shape[1:]]),
                (items, info.ids, info.mask),
            )
            chance = self._window_chance(info.probabilities, num_rows)
            chances, keys, weights = tf.nest.map_structure(
                lambda leaf: tf.repeat(leaf[None], num_rows, axis=0), (chance, info.keys, info.weights)
            )
            return items, BufferInfo(ids, chances, keys, weights, mask)

        return dataset.map(cut).unbatch()

    def _deliver_function(
        self, num: int | None, part: ItemPart, sample: Any
    ) -> Callable[[Any], tuple[Nest, BufferInfo]]:
        """What makes `(items, info)` of samples like this one, of any length where items differ.

        Traced once for each kind of draw, and not by calls, of which TensorFlow says that they trace too often when
        several buffers are sampled.
        """
        function = self._deliver_functions.get((num, part))
        if function is None:
            given = tf.nest.map_structure(tf.TensorSpec.from_tensor, sample)
            if self._length is None:
                columns = [tf.TensorSpec([one.shape[0], None, *one.shape[2:]], one.dtype) for one in given.data]
                given = given._replace(data=type(given.data)(columns))
            function = tf.function(
                lambda sample: self._finished(self.deliver(sample, num or 1, part), num), autograph=False
            ).get_concrete_function(given)
            self._deliver_functions[num, part] = function
        return function


def _batched(
    dataset: tf.data.Dataset, sample_batch_size: int | None, *, drop_remainder: bool = True
) -> tf.data.Dataset:
    return dataset if sample_batch_size is None else dataset.batch(sample_batch_size, drop_remainder=drop_remainder)
