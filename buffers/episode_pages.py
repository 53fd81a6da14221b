"""Where the frames of episodes lie: pages of consecutive rows, and for each episode the list of its pages.

A page has `P` rows. The frame with id `i`, the `k`-th of an episode whose list of pages begins at `base`, lies in row

    directory[base + k // P] + i

so a list holds, for each page, its first row minus the id of the first frame in it. A list has room for a power
of two of pages and moves to one twice as large when it is full.

Each row has a *tag*: the id of the frame in it, 0 while there is none. All rows of an episode lose their tags before
one of them is written anew, and a row gets its tag after it was written; ids are unique for ever, and a
frame never moves. So whoever has read a base and gathered the rows that the list there told, and then finds the tag
of one of the frames and the base unchanged, has gathered what he wanted: until then neither the rows nor the list
were given to others (test: `tests/buffers/test_episodic_torn_reads.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from .memory import SharedMemory, allocate, check_capacity_fits, memory_limit
from .nests import Array
from .ring_starts import uncompiled

# A frame's id is (episode id + 1) * 2**28 + its number within the episode: never 0, the tag of a row without a frame.
STEP_BITS = 28
MAX_EPISODE_FRAMES = 2**STEP_BITS
STEP_MASK = MAX_EPISODE_FRAMES - 1

# Tag and mark of each row; of each page its place in the list of used pages and in the directory, and both of those.
ROW_BYTES, PAGE_BYTES = 9, 56


# Bytes of a slot of an episode: state, base, number of pages, mark.
_SLOT_BYTES = 25

# Without max_frames this share of the machine's memory is reserved, and at most so many rows.
_RESERVED_SHARE = 0.5
_MOST_ROWS = 2**28
_DEFAULT_PAGE_ROWS, _MOST_PAGE_ROWS = 8, 16


def reserve_pages(frame_bytes: int, capacity: int, max_frames: int | None) -> tuple[int, int, int]:
    """How many pages of how many rows a buffer needs, and the bytes that its frames take when it is full.

    With `max_frames` there are enough for any episodes that hold no more together; rows of pages that are not
    full are few, because a page has at most half as many rows as an episode frames on average.

    Args:
      frame_bytes: of a frame.
      capacity: episodes.
      max_frames: frames, or None.

    Raises:
      ValueError: more bytes are needed than this machine has.

    >>> reserve_pages(frame_bytes=8, capacity=10, max_frames=100)
    (32, 4, 800)
    """
    if max_frames is None:
        check_capacity_fits(capacity * _SLOT_BYTES, "capacity")
        row_bytes = frame_bytes + ROW_BYTES + PAGE_BYTES // _DEFAULT_PAGE_ROWS
        available = int(_RESERVED_SHARE * memory_limit()) - capacity * _SLOT_BYTES
        num_rows = max(min(available // row_bytes, _MOST_ROWS), _DEFAULT_PAGE_ROWS)
        return num_rows // _DEFAULT_PAGE_ROWS, _DEFAULT_PAGE_ROWS, num_rows * frame_bytes
    average = max(2, max_frames // capacity)
    page_rows = min(_MOST_PAGE_ROWS, 1 << ((average // 2).bit_length() - 1))
    num_pages = (max_frames + min(capacity, max_frames) * (page_rows - 1)) // page_rows
    num_bytes = num_pages * (page_rows * (frame_bytes + ROW_BYTES) + PAGE_BYTES) + capacity * _SLOT_BYTES
    check_capacity_fits(num_bytes, "max_frames or capacity")
    return num_pages, page_rows, max_frames * frame_bytes


class EpisodePages:
    """`num_pages` pages of `page_rows` rows, and the lists of those that episodes use.

    The caller serialises everything that writes; `rows`, `tags` and `candidates` may be read at any time.

    Args:
      num_pages: pages to make room for.
      page_rows: `P`, a power of two.

    >>> pages = EpisodePages(num_pages=4, page_rows=2)
    >>> base = pages.extend(-1, 0, pages.take(2), frame_id(5))
    >>> pages.rows(np.array([base]), frame_id(5) + np.array([[0, 1, 2]])).tolist()
    [[0, 1, 2]]
    """

    def __init__(self, num_pages: int, page_rows: int) -> None:
        self.page_rows = page_rows
        self._shift = page_rows.bit_length() - 1
        self._num_pages = num_pages
        self._num_rows = num_pages * page_rows
        self._shared_tags = SharedMemory((self._num_rows,), np.int64)
        self.tags = self._shared_tags.array
        # First rows of the pages in use, in no order: what draws pick from. Then where each page stands there.
        self._shared_used = SharedMemory((num_pages,), np.int64)
        self._used = self._shared_used.array
        self._shared_num_used = SharedMemory((1,), np.int64)
        self.num_used = 0
        self._places = allocate((num_pages,), np.int64)
        # Pages given back; those from `_num_touched` on were never in use.
        self._free = allocate((num_pages,), np.int64)
        self._num_free = 0
        self._num_touched = 0
        # Extents of 2**c pages use less than twice the pages in use: with four times there is seldom need to compact.
        self._directory_size = 4 * num_pages + 64
        self._shared_directory = SharedMemory((self._directory_size,), np.int64)
        self.directory = self._shared_directory.array
        self._reset_directory()

    @property
    def num_rows_touched(self) -> int:
        """Rows from 0 on that were ever in use since the last `clear`."""
        return self._num_touched << self._shift

    @property
    def num_pages(self) -> int:
        """Pages that there is memory for."""
        return self._num_pages

    @property
    def num_available(self) -> int:
        """Pages that `take` can give."""
        return self._num_pages - self._num_touched + self._num_free

    def pages_for(self, num_frames: Any) -> Any:
        """Pages that so many frames of an episode take; an int, or an array."""
        return (num_frames + self.page_rows - 1) >> self._shift

    # Writing

    def take(self, num: int) -> Array:
        """First rows of `num` pages, int64 `[num]`; draws find them once they are `show`n."""
        from_free = min(num, self._num_free)
        self._num_free -= from_free
        taken = self._free[self._num_free : self._num_free + from_free].copy()
        if from_free == num:
            return taken
        fresh = np.arange(self._num_touched, self._num_touched + num - from_free) << self._shift
        self._num_touched += num - from_free
        return np.concatenate([taken, fresh]) if from_free else fresh

    def give_back(self, base: int, num_pages: int, pages: Array) -> None:
        """Takes the last pages of a list of `num_pages` back; they were never shown."""
        self._free_pages(pages)
        if len(pages) == num_pages:
            self._free_extent(base, num_pages)

    def show(self, pages: Array) -> None:
        """Lets draws find these pages."""
        end = self.num_used + len(pages)
        self._used[self.num_used : end] = pages
        self._places[pages >> self._shift] = np.arange(self.num_used, end)
        self._set_num_used(end)

    def release(self, base: int, num_pages: int, first_id: int) -> None:
        """Frees the pages of a list, and the list: their rows hold no frames from now on.

        `first_id` is the id of the episode's first frame.
        """
        pages = self._pages_of(base, num_pages, first_id)
        self._untag(pages)
        self._hide(pages)
        self._free_pages(pages)
        self._free_extent(base, num_pages)

    def extend(self, base: int, num_pages: int, added: Array, first_id: int) -> int:
        """Appends pages to a list of `num_pages` at `base` (-1 for none yet); returns its base from now on.

        `first_id` is the id of the episode's first frame.

        Raises:
          MemoryError: the directory is full: `compact` it.
        """
        total = num_pages + len(added)
        if num_pages == 0 or total > 1 << _extent_class(num_pages):
            new_base = self._take_extent(_extent_class(total))
            if num_pages:
                self.directory[new_base : new_base + num_pages] = self.directory[base : base + num_pages]
                self._free_extent(base, num_pages)
            base = new_base
        first_ids = first_id + np.arange(num_pages, total) * self.page_rows
        self.directory[base + num_pages : base + total] = added - first_ids
        return base

    def append_each(self, bases: Array, nums_pages: Array, added: Array, first_ids: Array) -> None:
        """`extend` of many lists with room left, by a page each; arguments int64 `[n]`."""
        self.directory[bases + nums_pages] = added - (first_ids + nums_pages * self.page_rows)

    def compact(self, bases: Array, nums_pages: Array) -> Array:
        """Moves the lists at `bases` together, so that the directory has room again; returns the new bases.

        Whoever reads meanwhile finds other tags than expected.
        """
        lists = [self.directory[base : base + num].copy() for base, num in zip(bases, nums_pages, strict=True)]
        self._reset_directory()
        moved = np.empty_like(bases)
        for index, pages in enumerate(lists):
            base = self._take_extent(_extent_class(len(pages)))
            self.directory[base : base + len(pages)] = pages
            moved[index] = base
        return moved

    def rebuild(self, first_ids: Array, nums_pages: Array, places: Array) -> Array:
        """Lists of pages as a buffer had them that was saved; nothing may be in use.

        Page `i` of all lists, one list after the other, is page `i` of the memory.

        Args:
          first_ids: for each list the id of its episode's first frame, int64 `[n]`, in ascending order.
          nums_pages: how many pages it has, at least one, int64 `[n]`.
          places: where each page stands among those that draws pick from (`places_of`), int64 `[m]`.

        Returns:
          The lists' bases, int64 `[n]`.
        """
        num = len(places)
        pages = np.arange(num) << self._shift
        extents = np.int64(1) << _extent_classes(nums_pages)
        bases = np.cumsum(extents) - extents
        within = np.arange(num) - np.repeat(np.cumsum(nums_pages) - nums_pages, nums_pages)
        first_ids = np.repeat(first_ids, nums_pages) + (within << self._shift)
        self.directory[np.repeat(bases, nums_pages) + within] = pages - first_ids
        self._directory_end = int(extents.sum())
        self._num_touched = num
        self._used[places] = pages
        self._places[:num] = places
        self._set_num_used(num)
        return bases

    def shorten(self, base: int, num_pages: int, num_kept: int, first_id: int) -> None:
        """Takes pages off the end of a list and keeps at least one; the list keeps its room until `compact`.

        `first_id` is the id of the episode's first frame.
        """
        dropped = self._pages_of(base, num_pages, first_id)[num_kept:]
        self._untag(dropped)
        self._hide(dropped)
        self._free_pages(dropped)

    def clear(self) -> None:
        """No list is left, and no row holds a frame."""
        self._untag(self._used[: self.num_used])
        self._set_num_used(0)
        self._num_free = self._num_touched = 0
        self._reset_directory()

    def _pages_of(self, base: int, num_pages: int, first_id: int) -> Array:
        """First rows of the pages of a list."""
        return np.asarray(self.directory[base : base + num_pages] + first_id + np.arange(num_pages) * self.page_rows)

    def _hide(self, pages: Array) -> None:
        """Draws find these pages no more."""
        places = self._places[pages >> self._shift]
        kept = self.num_used - len(pages)
        # The last of the pages in use move into the places that become free before them.
        tail = self._used[kept : self.num_used]
        stays = np.ones(len(pages), bool)
        stays[places[places >= kept] - kept] = False
        movers, holes = tail[stays], places[places < kept]
        self._used[holes] = movers
        self._places[movers >> self._shift] = holes
        self._set_num_used(kept)

    def _untag(self, pages: Array) -> None:
        by_page = self.tags.reshape(-1, self.page_rows)
        for start in range(0, len(pages), 4096):  # bounds the temporary memory
            by_page[pages[start : start + 4096] >> self._shift] = 0

    def _free_pages(self, pages: Array) -> None:
        self._free[self._num_free : self._num_free + len(pages)] = pages
        self._num_free += len(pages)

    def _reset_directory(self) -> None:
        self._directory_end = 0
        self._free_extents: list[list[int]] = [[] for _ in range(40)]

    def _take_extent(self, extent_class: int) -> int:
        if self._free_extents[extent_class]:
            return self._free_extents[extent_class].pop()
        base = self._directory_end
        if base + (1 << extent_class) > self._directory_size:
            raise MemoryError("the directory of pages is full.")
        self._directory_end += 1 << extent_class
        return base

    def _free_extent(self, base: int, num_pages: int) -> None:
        if num_pages:
            self._free_extents[_extent_class(num_pages)].append(base)

    def _set_num_used(self, num: int) -> None:
        self.num_used = num
        self._shared_num_used.array[0] = num

    # Reading

    def rows(self, bases: Array, ids: Array) -> Array:
        """Rows of the frames with `ids` `[n, T]` in the lists at `bases` `[n]`; some number where one is not held."""
        index = ids >> self._shift
        index += (bases - (ids[:, 0] >> STEP_BITS << (STEP_BITS - self._shift)))[:, None]
        rows = self.directory.take(index, mode="clip")
        rows += ids
        return rows

    def places_of(self, pages: Array) -> Array:
        """Where pages in use, told by their first rows, stand among those that draws pick from.

        What a seeded draw finds depends on these places, and not on the rows.
        """
        return np.asarray(self._places[pages >> self._shift])

    def row(self, base: int, identity: int) -> int:
        """Row of one frame, which is held."""
        return int(self.directory[base + ((identity & STEP_MASK) >> self._shift)]) + identity

    def candidates(self, rng: np.random.Generator, num: int) -> Array:
        """`num` rows of the pages in use, each with the same chance; there must be one."""
        index = rng.integers(0, self.num_used << self._shift, num)
        rows = self._used.take(index >> self._shift)
        rows += index & (self.page_rows - 1)
        return rows

    # Graph

    def rows_in_graph(self, bases: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """`rows` as graph ops; always rows of the storage."""
        shift, step_bits = tf.constant(self._shift, tf.int64), tf.constant(STEP_BITS, tf.int64)
        first = tf.bitwise.right_shift(ids[:, :1], step_bits) * (1 << (STEP_BITS - self._shift))
        index = tf.bitwise.right_shift(ids, shift) + (bases[:, None] - first)
        with uncompiled():
            pages = tf.gather(self._shared_directory.in_graph(), tf.clip_by_value(index, 0, self._directory_size - 1))
        return tf.clip_by_value(pages + ids, 0, self._num_rows - 1)

    def tags_in_graph(self, rows: tf.Tensor) -> tf.Tensor:
        """Tags of these rows."""
        return tf.gather(self._shared_tags.in_graph(), rows)

    def num_candidates_in_graph(self) -> tf.Tensor:
        """From how many rows `candidates_in_graph` picks, int64 `[]`."""
        return tf.gather(self._shared_num_used.in_graph(), 0) * self.page_rows

    def candidates_in_graph(self, num: tf.Tensor, num_rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """`candidates` as graph ops, of the `num_rows` that `num_candidates_in_graph` told."""
        index = tf.random.stateless_uniform(tf.reshape(num, [1]), seed, 0, num_rows, tf.int64)
        shift = tf.constant(self._shift, tf.int64)
        pages = tf.gather(self._shared_used.in_graph(), tf.bitwise.right_shift(index, shift))
        return pages + tf.bitwise.bitwise_and(index, tf.constant(self.page_rows - 1, tf.int64))


def _extent_class(num_pages: int) -> int:
    """The least `c` with room for so many pages in `2**c`."""
    return (num_pages - 1).bit_length()


def _extent_classes(nums_pages: Array) -> Array:
    """`_extent_class` of each, int64 `[n]`."""
    # frexp: the least exponent with `n - 1 < 2**exponent`.
    return np.frexp(nums_pages - 1)[1].astype(np.int64)


def frame_id(episode: int, step: int = 0) -> int:
    """Id of a frame of the episode with this id.

    >>> frame_id(0, 3) - frame_id(0)
    3
    """
    return ((episode + 1) << STEP_BITS) + step
