"""Tells which of many things came before: episodes by what they hold, ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash

_NUM_NAMED = 5


class Duplicates:
    """Which of many things came before, found at the end: 16 bytes for each.

    >>> seen = Duplicates()
    >>> for name, content in (("0", b"a"), ("1", b"b"), ("2", b"a")):
    ...     seen.add(digest_of(content), name)
    >>> seen.result()
    (1, ('2 = 0',))
    """

    def __init__(self) -> None:
        self._digests = bytearray()
        self._count = 0
        self._names: dict[int, str] = {}

    def add(self, digest: bytes, name: str) -> None:
        """Takes the next one.

        Args:
          digest: of what it holds, of `digest_of` or `digest_of_columns`.
          name: what it is called in the result.
        """
        self._digests += digest
        if name != str(self._count):
            self._names[self._count] = name
        self._count += 1

    def result(self) -> tuple[int, tuple[str, ...]]:
        """How many came before, and the first few as `'7 = 2'`."""
        halves = np.frombuffer(self._digests, np.uint64).reshape(-1, 2)
        order = np.lexsort((np.arange(len(halves)), halves[:, 1], halves[:, 0]))
        again = np.zeros([len(halves)], bool)
        again[1:] = (halves[order][1:] == halves[order][:-1]).all(axis=1)
        # The first of each run of equal ones, which is the earliest episode.
        first = np.maximum.accumulate(np.where(again, 0, np.arange(len(halves)))) if len(halves) else order
        later, earlier = order[again], order[first[again]]
        shown = np.argsort(later)[:_NUM_NAMED]
        named = tuple(f"{self._name(int(later[at]))} = {self._name(int(earlier[at]))}" for at in shown)
        return int(again.sum()), named

    def _name(self, index: int) -> str:
        return self._names.get(index, str(index))


def digest_of(content: bytes) -> bytes:
    """16 bytes that no other content has, but by a chance that a dataset never meets.

    Nobody makes datasets to deceive a check, so that a digest made for speed will do: XXH3, https://xxhash.com.

    >>> len(digest_of(b"")), digest_of(b"a") == digest_of(b"b")
    (16, False)
    """
    return xxhash.xxh3_128_digest(content)


def digest_of_columns(num_steps: int, leaves: Iterable[Any]) -> bytes:
    """The same of an episode.

    Args:
      num_steps: its length, `n`.
      leaves: its columns, arrays `[n, ...]` or `tf.RaggedTensor`.

    >>> digest_of_columns(2, [np.array([1, 2])]) == digest_of_columns(2, [np.array([1, 3])])
    False
    """
    digest = xxhash.xxh3_128(num_steps.to_bytes(8, "little"))
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray):
            for lengths in leaf.nested_row_lengths():
                digest.update(lengths.numpy().tobytes())
            leaf = leaf.flat_values.numpy()
        if leaf.dtype.kind in "OSU":
            values = [value if isinstance(value, bytes) else str(value).encode() for value in leaf.ravel().tolist()]
            digest.update(np.fromiter(map(len, values), np.int64, len(values)).tobytes())
            digest.update(b"".join(values))
        else:
            digest.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    return digest.digest()
