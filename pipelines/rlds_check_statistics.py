"""Statistics of a dataset's fields in one pass and bounded memory: range, mean, deviation, histogram.

Mean and squared deviations of blocks are merged as in Chan, Golub and LeVeque, "Updating
Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), eq. 2.1, which
loses no digits where the mean is large against the deviation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Array

# Elements of a field that are told apart, of a vector and of other arrays; of larger ones (images) all values are
# one population.
_MAX_ELEMENTS = 1024
_MAX_ELEMENTS_OF_ARRAYS = 64
_VALUES_AT_ONCE = 1 << 16
_ARRAYS_AT_ONCE = 1024
_NUM_BINS = 128
_MAX_DISTINCT = 1000
_MAX_SHAPES = 4
_LARGEST_BINNED = 1e300


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of one width.

    Attributes:
      start: the lower edge of the first bin.
      width: of a bin.
      counts: for each bin; the first and the last are not 0.

    >>> Histogram(start=-0.5, width=1.0, counts=(2, 0, 1)).edges()
    [-0.5, 0.5, 1.5, 2.5]
    """

    start: float
    width: float
    counts: tuple[int, ...]

    def edges(self) -> list[float]:
        """The edges of the bins, one more than there are bins."""
        return [self.start + self.width * index for index in range(len(self.counts) + 1)]


@dataclasses.dataclass(frozen=True)
class Distribution:
    """What one number of each episode is like over the dataset.

    Attributes:
      count: episodes that have it.
      min, median, mean, max, std: over them; std is that of the population.
      histogram: of all of them.

    >>> lengths = Distribution.of(np.array([2.0, 2.0, 5.0]), integer=True)
    >>> lengths.median, lengths.mean, lengths.histogram
    (2.0, 3.0, Histogram(start=1.5, width=1.0, counts=(2, 0, 0, 1)))
    """

    count: int
    min: float
    median: float
    mean: float
    max: float
    std: float
    histogram: Histogram

    @staticmethod
    def of(values: Array, *, integer: bool) -> Distribution:
        """Of at least one finite number, `[N]`.

        Args:
          values: float64 `[N]`.
          integer: they are whole numbers, so that bins are as wide as one or more of them.
        """
        histogram = ExpandingHistogram(1, integer=integer)
        histogram.add(values[np.newaxis])
        (bins,) = histogram.result()
        mean = float(values.mean())
        return Distribution(
            count=len(values),
            min=float(values.min()),
            median=float(np.median(values)),
            mean=mean,
            max=float(values.max()),
            std=float(np.sqrt(np.square(values - mean).mean())),
            histogram=bins,
        )


class ExpandingHistogram:
    """Histograms of `D` columns whose range is not known before: a bin grows where it has to.

    A value outside doubles the width of that column's bins, two old ones make a new one, so
    that counts are exact, and between 32 and 128 bins cover the range of more than a few values.

    Args:
      num_columns: `D`.
      integer: values are whole numbers; each of a few has a bin of its own.

    >>> histogram = ExpandingHistogram(1, integer=True)
    >>> histogram.add(np.array([[3.0, 5.0, 3.0]]))
    >>> histogram.result()
    (Histogram(start=2.5, width=1.0, counts=(2, 0, 1)),)
    """

    def __init__(self, num_columns: int, *, integer: bool) -> None:
        self._integer = integer
        self._start = np.zeros([num_columns])
        self._width = np.zeros([num_columns])
        self._counts = np.zeros([num_columns, _NUM_BINS], np.int64)

    def add(self, values: Array) -> None:
        """Counts float64 `[D, n]`; what is not finite, or beyond 1e300, is left out."""
        if not values.size:
            return
        lowest, highest = values.min(axis=1), values.max(axis=1)
        usable = None
        if not (np.abs(lowest) <= _LARGEST_BINNED).all() or not (np.abs(highest) <= _LARGEST_BINNED).all():
            usable = np.abs(values) <= _LARGEST_BINNED  # False for NaN
            if not usable.any():
                return
            lowest = np.where(usable, values, np.inf).min(axis=1)
            highest = np.where(usable, values, -np.inf).max(axis=1)
            # Of a column without a usable value nothing is counted: its width may be 0 still.
            values = np.where(usable, values, self._start[:, np.newaxis])
        self._cover(lowest, highest)
        width = np.where(self._width > 0, self._width, 1.0)
        places = values - self._start[:, np.newaxis]
        places /= width[:, np.newaxis]
        # None is below the first bin; the greatest may be on the last one's upper edge.
        bins = np.minimum(places, _NUM_BINS - 1, out=places).astype(np.int64)
        bins += (np.arange(len(self._start)) * _NUM_BINS)[:, np.newaxis]
        counted = bins.ravel() if usable is None else bins[usable]
        self._counts += np.bincount(counted, minlength=self._counts.size).reshape(self._counts.shape)

    def result(self) -> tuple[Histogram, ...]:
        """One for each column; no counts where a column had no value."""
        return tuple(self._column(index) for index in range(len(self._start)))

    def _column(self, index: int) -> Histogram:
        filled = np.flatnonzero(self._counts[index])
        if not filled.size:
            return Histogram(0.0, 0.0, ())
        first, last = int(filled[0]), int(filled[-1])
        width = float(self._width[index])
        counts = self._counts[index, first : last + 1]
        return Histogram(float(self._start[index] + first * width), width, tuple(counts.tolist()))

    def _cover(self, lowest: Array, highest: Array) -> None:
        outside = (lowest < self._start) | (highest > self._start + _NUM_BINS * self._width) | (self._width == 0)
        for index in np.flatnonzero(outside & (lowest <= highest)):
            self._cover_column(int(index), float(lowest[index]), float(highest[index]))

    def _cover_column(self, index: int, lowest: float, highest: float) -> None:
        half = _NUM_BINS // 2
        start, width, counts = float(self._start[index]), float(self._width[index]), self._counts[index]
        if width == 0:
            start, width = self._first_bins(lowest, highest)
        while lowest < start or highest > start + _NUM_BINS * width:
            merged = counts.reshape(half, 2).sum(axis=1)
            counts[:] = 0
            if lowest < start:
                counts[half:] = merged
                start -= _NUM_BINS * width
            else:
                counts[:half] = merged
            width *= 2
        self._start[index], self._width[index] = start, width

    def _first_bins(self, lowest: float, highest: float) -> tuple[float, float]:
        if self._integer:
            return lowest - 0.5, 1.0
        # The greatest value falls into the last bin, not onto its upper edge.
        span = (highest - lowest) / _NUM_BINS * (1 + 1e-9)
        return lowest, span or max(abs(lowest) * 1e-6, 1e-12)


@dataclasses.dataclass(frozen=True)
class FieldSummary:
    """What a field holds over the whole dataset.

    Numbers that do not exist (the range of a string, the mean of nothing) are None. Minimum,
    maximum, mean and std are over finite values; of a complex field over magnitudes.

    Attributes:
      path: as `'observation/image'`.
      dtype: `'float32'`, `'string'`, ...
      shape: of one step; None where a dimension varies.
      kind: `'number'`, `'string'` or `'ragged'`.
      count: values, or strings.
      min, max, mean, std: of the values; of a ragged field of what its rows hold.
      nan, infinite: how many values are.
      element_min, element_max, element_mean, element_std: for each element of a vector
        of at most 1,024, or of an array of at most 64, in the order of `ravel`; empty for others.
      constant_elements: indices of those that never change.
      rows: min, mean and max of the lengths of a ragged field's rows.
      longest: bytes of the longest string.
      distinct: different strings; 1,000 stands for that many or more.
      empty: strings of length 0.
      shapes: the first few shapes of one step that occur, where a dimension varies.
      histogram: for each element, where it was asked for.
    """

    path: str
    dtype: str
    shape: tuple[int | None, ...] | None
    kind: str
    count: int = 0
    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    std: float | None = None
    nan: int = 0
    infinite: int = 0
    element_min: tuple[float | int | None, ...] = ()
    element_max: tuple[float | int | None, ...] = ()
    element_mean: tuple[float | None, ...] = ()
    element_std: tuple[float | None, ...] = ()
    constant_elements: tuple[int, ...] = ()
    rows: tuple[float, float, float] | None = None
    longest: int | None = None
    distinct: int | None = None
    empty: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    histogram: tuple[Histogram, ...] = ()

    @property
    def constant(self) -> bool:
        """It has more than one value, and all are the same number; False for strings."""
        return self.count > 1 and self.min is not None and self.min == self.max and not self.nan + self.infinite

    @property
    def values(self) -> str:
        """Dtype and shape, as `'float32[17]'`."""
        shape = "" if not self.shape else f"[{','.join('?' if size is None else str(size) for size in self.shape)}]"
        return f"{self.dtype}{'[?]' if self.shape is None else shape}"


class FieldStatistics:
    """Collects what `FieldSummary` tells, an episode or several at a time.

    Small columns wait until some ten thousand values are there, so that short episodes cost
    little more a step than long ones.

    Args:
      path: of the field.
      spec: type spec of one step (of one episode, for its own fields).
      with_histogram: histograms of each element, too.

    >>> statistics = FieldStatistics("reward", tf.TensorSpec([], tf.float32))
    >>> statistics.add(np.array([1.0, 2.0, np.nan], np.float32))
    >>> statistics.add(np.array([3.0], np.float32))
    >>> found = statistics.result()
    >>> found.min, found.max, found.mean, round(found.std, 3), found.nan
    (1.0, 3.0, 2.0, 0.816, 1)
    """

    def __init__(self, path: str, spec: Any, *, with_histogram: bool = False) -> None:
        self._path = path
        self._dtype = getattr(spec, "dtype", None)
        shape = getattr(spec, "shape", None)
        self._shape = None if shape is None or shape.rank is None else tuple(shape.as_list())
        fixed = self._shape is not None and None not in self._shape
        num_elements = int(np.prod(self._shape)) if fixed and self._shape is not None else 0
        self._is_ragged = not isinstance(spec, tf.TensorSpec)
        is_vector = self._shape is not None and len(self._shape) < 2
        most = 0 if self._is_ragged else _MAX_ELEMENTS if is_vector else _MAX_ELEMENTS_OF_ARRAYS
        self._width = num_elements if 0 < num_elements <= most else 1
        self._varies = not fixed
        self._moments = _Moments(self._width)
        integer = self._dtype is not None and (self._dtype.is_integer or self._dtype.is_bool)
        self._histogram = ExpandingHistogram(self._width, integer=integer) if with_histogram else None
        self._rows: _Moments | None = None
        self._strings: _Strings | None = None
        self._shapes: dict[tuple[int, ...], None] = {}
        self._pending: list[Array] = []
        self._num_pending = self._num_arrays = 0

    def add(self, column: Any) -> None:
        """Takes the field's values of an episode: an array `[N, ...]` or a `tf.RaggedTensor`."""
        if isinstance(column, tf.RaggedTensor):
            lengths = column.row_lengths().numpy()
            self._rows = self._rows or _Moments(1)
            self._rows.add(lengths[:, np.newaxis])
            column = column.flat_values.numpy()
        else:
            self._see_shape(column)
        if column.dtype.kind in "OSU":
            self._strings = self._strings or _Strings()
            self._strings.add(column)
            return
        self._take(column, [len(column)])

    def add_all(self, columns: Array, lengths: Iterable[int]) -> None:
        """As `add` of each of several episodes, whose arrays of numbers are one after the other.

        Args:
          columns: `[R, ...]`.
          lengths: steps of each episode, `R` together.
        """
        self._see_shape(columns)
        self._take(columns, lengths)

    def result(self) -> FieldSummary:
        """Of all that was added."""
        self._flush()
        is_ragged = self._is_ragged or self._rows is not None
        summary = FieldSummary(
            path=self._path,
            dtype="unknown" if self._dtype is None else self._dtype.name,
            shape=self._shape,
            kind="ragged" if is_ragged else "number",
            rows=self._rows.triple() if self._rows is not None else None,
            shapes=tuple(self._shapes),
        )
        if self._strings is not None or self._dtype == tf.string:
            strings = self._strings or _Strings()
            return dataclasses.replace(
                summary,
                kind="ragged" if is_ragged else "string",
                count=strings.count,
                longest=strings.longest,
                distinct=len(strings.distinct),
                empty=strings.empty,
            )
        return dataclasses.replace(
            summary,
            **self._moments.summary(),
            histogram=self._histogram.result() if self._histogram is not None else (),
        )

    def _see_shape(self, column: Array) -> None:
        if self._varies and len(self._shapes) < _MAX_SHAPES and len(column):
            self._shapes.setdefault(column.shape[1:])

    def _take(self, columns: Array, lengths: Iterable[int]) -> None:
        # The rows, not the values: an array of other values in each episode is one column.
        rows = columns.reshape(-1, self._width)
        rows_a_step = len(rows) // max(len(columns), 1)
        start = stop = 0
        for length in lengths:
            begin, stop = stop, stop + length * rows_a_step
            num_values = (stop - begin) * self._width
            if num_values >= _VALUES_AT_ONCE:
                self._wait(rows[start:begin])
                self._flush()
                self._update(rows[begin:stop])
                start = stop
                continue
            self._num_pending += num_values
            self._num_arrays += 1
            if self._num_pending >= _VALUES_AT_ONCE or self._num_arrays >= _ARRAYS_AT_ONCE:
                self._wait(rows[start:stop])
                self._flush()
                start = stop
        self._wait(rows[start:])

    def _wait(self, rows: Array) -> None:
        if len(rows):
            self._pending.append(rows)

    def _flush(self) -> None:
        pending, self._pending, self._num_pending, self._num_arrays = self._pending, [], 0, 0
        if pending:
            self._update(np.concatenate(pending) if len(pending) > 1 else pending[0])

    def _update(self, rows: Array) -> None:
        num_rows = max(_VALUES_AT_ONCE // self._width, 1)
        for start in range(0, len(rows), num_rows):
            block = self._moments.add(rows[start : start + num_rows])
            if self._histogram is not None:
                self._histogram.add(block)


class _Moments:
    """Count, range, mean and squared deviations of `D` columns."""

    def __init__(self, num_columns: int) -> None:
        self._count = np.zeros([num_columns], np.int64)
        self._mean = np.zeros([num_columns])
        self._squares = np.zeros([num_columns])
        self._min: Array | None = None
        self._max: Array | None = None
        self._nan = 0
        self._infinite = 0

    def add(self, rows: Array) -> Array:
        """Takes numbers `[n, D]`, and returns them as float64 `[D, n]`."""
        rows = _comparable(rows)
        # A column as one run of memory: NumPy reduces that several times faster.
        block = np.ascontiguousarray(rows.T, np.float64)
        if not len(rows):
            return block
        finite: Array | None = None
        if rows.dtype.kind == "f":
            lowest, highest = block.min(axis=1), block.max(axis=1)
            # NaN and infinities carry through minimum and maximum: nothing else is looked at value by value.
            if not (np.isfinite(lowest).all() and np.isfinite(highest).all()):
                finite = np.isfinite(block)
                self._nan += int(np.isnan(block).sum())
                self._infinite += int(np.isinf(block).sum())
                lowest = np.where(finite, block, np.inf).min(axis=1)
                highest = np.where(finite, block, -np.inf).max(axis=1)
        else:
            # float64 does not hold every int64.
            lowest, highest = rows.min(axis=0), rows.max(axis=0)
        self._min = lowest if self._min is None else np.minimum(self._min, lowest)
        self._max = highest if self._max is None else np.maximum(self._max, highest)
        # Values of 1e300 overflow in the squares: their std is then told as missing.
        with np.errstate(over="ignore", invalid="ignore"):
            self._merge(block, finite)
        return block

    def summary(self) -> dict[str, Any]:
        """The numbers of a `FieldSummary`."""
        total = int(self._count.sum())
        found: dict[str, Any] = {"count": total + self._nan + self._infinite}
        found.update(nan=self._nan, infinite=self._infinite)
        if not total or self._min is None or self._max is None:
            return found
        used = self._count > 0
        count, mean, squares = self._count[used], self._mean[used], self._squares[used]
        with np.errstate(over="ignore", invalid="ignore"):
            overall = float((mean * (count / total)).sum())
            std = float(np.sqrt((squares + count * np.square(mean - overall)).sum() / total))
            element_std = np.sqrt(self._squares / np.maximum(self._count, 1))
        found.update(min=_number(self._min[used].min()), max=_number(self._max[used].max()))
        found.update(mean=_number(overall), std=_number(std))
        if len(used) > 1:
            found.update(
                element_min=tuple(map(_number, self._min)),
                element_max=tuple(map(_number, self._max)),
                element_mean=tuple(_number(value) for value in np.where(used, self._mean, np.nan)),
                element_std=tuple(_number(value) for value in np.where(used, element_std, np.nan)),
                constant_elements=tuple(np.flatnonzero(used & (self._min == self._max) & (total > len(used))).tolist()),
            )
        return found

    def triple(self) -> tuple[float, float, float] | None:
        """Minimum, mean and maximum of all columns; None without a value."""
        found = self.summary()
        return (float(found["min"]), float(found["mean"]), float(found["max"])) if "min" in found else None

    def _merge(self, block: Array, finite: Array | None) -> None:
        if finite is None:
            count = np.full(self._count.shape, block.shape[1], np.int64)
            mean = block.mean(axis=1)
            deviation = block - mean[:, np.newaxis]
        else:
            count = finite.sum(axis=1)
            mean = np.where(finite, block, 0.0).sum(axis=1) / np.maximum(count, 1)
            deviation = np.where(finite, block - mean[:, np.newaxis], 0.0)
        squares = np.einsum("dn,dn->d", deviation, deviation)
        total = self._count + count
        share = count / np.maximum(total, 1)
        apart = mean - self._mean
        self._squares += squares + np.square(apart) * self._count * share
        self._mean += apart * share
        self._count = total


class _Strings:
    """How many strings, how long, and how many different ones up to a bound."""

    def __init__(self) -> None:
        self.count = self.longest = self.empty = 0
        self.distinct: set[Any] = set()

    def add(self, column: Array) -> None:
        values = column.ravel().tolist()
        if not values:
            return
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        self.count += len(values)
        self.longest = max(self.longest, int(lengths.max()))
        self.empty += int((lengths == 0).sum())
        # Encoded images are strings too: what is long is counted by its hash alone.
        room = _MAX_DISTINCT - len(self.distinct)
        if room > 0:
            different = set(values) if self.longest <= 256 else set(map(hash, values))
            self.distinct.update(list(different)[:room] if len(different) > room else different)


def _comparable(rows: Array) -> Array:
    """Numbers whose minimum NumPy finds exactly: bool as 0 and 1, half floats wider, complex as magnitude."""
    if rows.dtype.kind == "b":
        return rows.view(np.uint8)
    if rows.dtype.kind == "c":
        return np.abs(rows)
    if rows.dtype.kind == "V" or rows.dtype == np.float16:  # V: bfloat16
        return rows.astype(np.float32)
    return rows


def _number(value: Any) -> float | int | None:
    """A Python number that JSON has, else None."""
    number: float | int = value.item() if isinstance(value, np.generic) else value
    return number if np.isfinite(number) else None
