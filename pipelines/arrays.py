"""Cuts flat arrays, a row for each transition as D4RL keeps them, into episodes.

Where an episode ends, and what becomes of its last row:

| row `i` has | the episode | the last row's transition |
| --- | --- | --- |
| `terminals` (with `timeouts` or not) | is terminal | kept; without `next_observations` it leads to zeros, discount 0 |
| `timeouts` only | is truncated | kept with `next_observations`; without, it is lost: nothing tells where it led |
| neither, `next_observations[i] != observations[i + 1]` | is truncated, `is_last` unset | kept |
| neither, and is the file's last | is truncated, `is_last` unset | as after a timeout |
| `episode_length` rows since the last end | is truncated | as after a timeout |

So both kinds of file go one way, and 1,000 rows with timeouts at 499 and 999 are 1,000
transitions with `next_observations`, 998 without. No transition joins two episodes. An end
that the file does not flag is counted in the load report as a step without `is_last`.

What TFDS's D4RL builders do differs in one point: with `next_observations` they end every
episode in the final row of the whole file. Here it is the row of that episode's own end.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from replayfeed.buffers.nests import Array, field_path

from .episode_columns import (
    FLAG_SPECS,
    extend,
    metadata_spec_of,
    metadata_value,
    nest_of_paths,
    paths_of,
    read_rows,
    rows_equal,
    step_columns,
    step_spec_of,
    why_not_loaded,
)
from .episode_source import METADATA, EpisodeSource, RawEpisode
from .rlds_steps import ACTION, DISCOUNT, FLAGS, OBSERVATION, REWARD, check_step_spec

OBSERVATIONS, NEXT_OBSERVATIONS, TERMINALS, TIMEOUTS = "observations", "next_observations", "terminals", "timeouts"

# Rows are read from files this much at a time, or an episode where that is more.
_BLOCK_BYTES = 8 << 20

_BY_LENGTH = "arrays_source(..., episode_length=1000), or hdf5_source or npz_source, makes a source for load_rlds"

_MAX_NAMED = 5

_Path = tuple[str, ...]
_Opener = Callable[[], contextlib.AbstractContextManager[Mapping[str, Any]]]

_FIELDS = {OBSERVATIONS: OBSERVATION, "actions": ACTION, "rewards": REWARD, "discounts": DISCOUNT}


def arrays_source(
    arrays: Mapping[str, Any], *, name: str = "arrays", episode_length: int | None = None
) -> EpisodeSource:
    """The episodes of flat arrays; they go through the same rules as those of an RLDS dataset.

    Nothing is copied or read as a whole but the flags and, with `next_observations`, both kinds
    of observations once, a block of rows at a time, to find ends without a flag: rows must be
    equal exactly (NaN equals NaN), after a cast to the dtype of `observations`. What is found is
    in the source's `notes`, which the load report shows.

    Args:
      arrays: `R` rows each, NumPy arrays or what can be sliced like them (HDF5 datasets,
        memory maps): `observations`, and what there is of `actions`, `rewards`, `terminals`,
        `timeouts`, `next_observations`, `discounts`. Any may be a nested dict, or have keys such
        as `'observations/image'`. Further arrays (`'infos/qpos'`) become step metadata;
        what is below `'metadata'` is metadata of each episode, and has no rows.
      name: for reports and messages.
      episode_length: ends an episode after so many rows, where no flag has ended it before.

    Raises:
      ValueError: `episode_length` is below 1.
      ValueError: there are no observations, no rows, or the arrays differ in their number of rows.
      ValueError: `next_observations` do not fit `observations`.
      ValueError: no row ends an episode: both flags are absent or never set, without `episode_length`.
      ValueError: a flag, the discount or the reward is not one number a row.

    >>> source = arrays_source({"observations": np.arange(5.0), "actions": np.arange(5), "rewards": np.ones(5),
    ...                         "terminals": np.array([0, 1, 0, 0, 0]), "timeouts": np.array([0, 0, 0, 0, 1])})
    >>> for episode in source.read(None):
    ...     print(episode.columns["observation"], episode.columns["is_terminal"])
    [0. 1. 0.] [False False  True]
    [2. 3. 4.] [False False False]
    """
    return opened_source(lambda: contextlib.nullcontext(arrays), name=name, episode_length=episode_length)


def opened_source(open_arrays: _Opener, *, name: str, episode_length: int | None) -> EpisodeSource:
    """`arrays_source` of arrays that are opened anew for each pass, as those of a file.

    >>> arrays = {"observations": np.arange(4.0), "timeouts": np.array([0, 1, 0, 1])}
    >>> opened_source(lambda: contextlib.nullcontext(arrays), name="mine", episode_length=None).num_episodes
    2
    """
    if episode_length is not None and episode_length < 1:
        raise ValueError(f"{name}: episode_length must be 1 or more, got {episode_length}.")
    with open_arrays() as arrays:
        table = _Table.of(name, arrays)
        check_step_spec(name, table.step_spec)
        episodes, notes = _find_episodes(table, episode_length)
        metadata = table.metadata()
    num_episodes = len(episodes.starts)

    def read(seed: int | None) -> Iterator[RawEpisode]:
        order = np.arange(num_episodes) if seed is None else np.random.default_rng(seed).permutation(num_episodes)
        with open_arrays() as arrays:
            table = _Table.of(name, arrays)
            for run in _runs(order, episodes, max(1, _BLOCK_BYTES // table.row_bytes)):
                for raw in _read_run(table, episodes, run):
                    yield raw._replace(metadata=metadata)

    return EpisodeSource(
        name,
        table.step_spec,
        read,
        num_episodes=num_episodes,
        not_loaded=table.not_loaded,
        metadata_spec=metadata_spec_of(metadata),
        # The same endings as in TFDS's D4RL datasets: a truncated one lacks its last observation.
        is_d4rl=not table.next_observations,
        notes=notes,
    )


@dataclasses.dataclass(frozen=True)
class _Table:
    """The arrays of a file by their part in a step, none read."""

    name: str
    num_rows: int
    fields: Mapping[_Path, Any]
    next_observations: Mapping[_Path, Any]
    flags: Mapping[str, Any]
    own: Mapping[_Path, Any]
    not_loaded: tuple[str, ...]

    @classmethod
    def of(cls, name: str, arrays: Mapping[str, Any]) -> _Table:
        leaves = {path: leaf if hasattr(leaf, "dtype") else np.asarray(leaf) for path, leaf in paths_of(arrays)}
        own = {path[1:]: leaf for path, leaf in leaves.items() if path[0] == METADATA and len(path) > 1}
        rows = {path: leaf for path, leaf in leaves.items() if path[0] != METADATA}
        num_rows = _num_rows(name, rows)
        fields, not_loaded, flags, following = {}, [], {}, {}
        for path, leaf in rows.items():
            if path in ((TERMINALS,), (TIMEOUTS,)):
                flags[path[0]] = leaf
            elif path[0] == NEXT_OBSERVATIONS:
                following[(OBSERVATION, *path[1:])] = leaf
            elif path[0] in _FIELDS:
                fields[(_FIELDS[path[0]], *path[1:])] = leaf
            elif path[0] in (*_FIELDS.values(), *FLAGS):
                raise ValueError(
                    f"{name}: {field_path(path)!r} is RLDS's name of a field that comes from D4RL's names here "
                    f"({', '.join(map(repr, _FIELDS))}, {TERMINALS!r}, {TIMEOUTS!r}): rename it or leave it out."
                )
            elif why_not_loaded(leaf):
                not_loaded.append(f"{field_path(path)} ({why_not_loaded(leaf)})")
            else:
                fields[path] = leaf
        table = cls(name, num_rows, fields, following, flags, own, tuple(sorted(not_loaded)))
        table._check_next_observations()
        return table

    @property
    def observations(self) -> dict[_Path, Any]:
        return {path: leaf for path, leaf in self.fields.items() if path[0] == OBSERVATION}

    @property
    def step_spec(self) -> dict[str, Any]:
        return {**step_spec_of(self.name, self.fields), **FLAG_SPECS}

    @property
    def row_bytes(self) -> int:
        return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in self.fields.values())

    def metadata(self) -> dict[str, Any]:
        return nest_of_paths({path: metadata_value(leaf[()]) for path, leaf in self.own.items()})

    def flag(self, key: str) -> Array:
        """Bool `[R]`; all False when there is no such array."""
        if key not in self.flags:
            return np.zeros([self.num_rows], bool)
        values = np.asarray(self.flags[key][:])
        if values.size != self.num_rows or values.dtype.kind not in "biuf":
            raise ValueError(
                f"{self.name}: {key!r}: expected a bool a row, [{self.num_rows}], got {values.dtype} {values.shape}."
            )
        flags = values.reshape(-1) != 0
        unclear = np.flatnonzero(flags & (values.reshape(-1) != 1))
        if unclear.size:
            raise ValueError(
                f"{self.name}: {key!r}: expected 0 or 1, got {values.reshape(-1)[unclear[0]]} at row {unclear[0]}."
            )
        return flags

    def _check_next_observations(self) -> None:
        if not self.next_observations:
            return
        observations = self.observations
        for path, leaf in observations.items():
            following = self.next_observations.get(path)
            if following is None or following.shape != leaf.shape or not _same_kind(following.dtype, leaf.dtype):
                found = "nothing" if following is None else f"{following.dtype} {following.shape}"
                raise ValueError(
                    f"{self.name}: 'next_observations' must be like 'observations': for {field_path(path)!r} expected "
                    f"{leaf.dtype} {leaf.shape}, got {found}. Without 'next_observations' the next row is taken."
                )
        more = sorted(field_path(path) for path in set(self.next_observations) - set(observations))
        if more:
            raise ValueError(f"{self.name}: 'next_observations' hold {more}, which 'observations' do not.")


@dataclasses.dataclass(frozen=True)
class _EpisodeRows:
    """Where episodes lie: rows `[starts[i], stops[i])`, whether they end in a terminal state, and by a flag."""

    starts: Array
    stops: Array
    terminal: Array
    flagged: Array


def _num_rows(name: str, rows: Mapping[_Path, Any]) -> int:
    found = sorted(field_path(path) for path in rows)
    observations = [leaf for path, leaf in rows.items() if path[0] == OBSERVATIONS]
    if not observations:
        raise ValueError(f"{name}: expected 'observations', 'actions', 'rewards', 'terminals', ..., got {found}.")
    scalars = [field_path(path) for path, leaf in rows.items() if not leaf.shape]
    if scalars:
        raise ValueError(
            f"{name}: {scalars} hold one value and no rows: put them below {METADATA!r}, or leave them out."
        )
    num_rows = int(observations[0].shape[0])
    others = {field_path(path): int(leaf.shape[0]) for path, leaf in rows.items() if leaf.shape[0] != num_rows}
    if others:
        raise ValueError(
            f"{name}: 'observations' have {num_rows:,} rows, others differ: {others}. Every array needs a row for "
            f"each transition; what belongs to the whole file goes below {METADATA!r}."
        )
    if not num_rows:
        raise ValueError(f"{name}: the arrays have no row.")
    return num_rows


def _same_kind(source: Any, target: Any) -> bool:
    return bool(np.can_cast(source, target, "same_kind"))


def _find_episodes(table: _Table, episode_length: int | None) -> tuple[_EpisodeRows, tuple[str, ...]]:
    terminals, timeouts = table.flag(TERMINALS), table.flag(TIMEOUTS)
    flagged = terminals | timeouts
    if episode_length is None and not table.flags:
        raise ValueError(
            f"{table.name}: there is neither 'terminals' nor 'timeouts', so nothing tells where an episode ends: add "
            f"the arrays, or say after how many rows one ends: {_BY_LENGTH}."
        )
    unfollowed, shifted = _compare_next(table, flagged)
    if episode_length is None and not (flagged.any() or unfollowed.any()):
        raise ValueError(
            f"{table.name}: {' and '.join(map(repr, sorted(table.flags)))} end no episode in {table.num_rows:,} rows: "
            f"say after how many rows one ends: {_BY_LENGTH}."
        )
    ends = flagged | unfollowed
    ends[-1] = True
    if episode_length is not None:
        row = np.arange(table.num_rows)
        since = row - _starts(ends)[np.cumsum(ends) - ends]
        by_length = (since + 1) % episode_length == 0
        ends |= by_length
        flagged |= by_length
    stops = np.flatnonzero(ends) + 1
    episodes = _EpisodeRows(_starts(ends), stops, terminals[stops - 1], flagged[stops - 1])
    return episodes, tuple(_notes(table, episodes, terminals & timeouts, unfollowed, shifted, episode_length))


def _starts(ends: Array) -> Array:
    """The first row of each episode, from bool `[R]` that is True on the last rows, the very last included."""
    return np.concatenate([[0], np.flatnonzero(ends)[:-1] + 1])


def _compare_next(table: _Table, flagged: Array) -> tuple[Array, Array]:
    """Bool `[R]` twice: rows without a flag that the next row does not follow; rows with one that it does follow."""
    followed = np.ones([table.num_rows], bool)
    if table.next_observations:
        block = max(1, _BLOCK_BYTES // table.row_bytes)
        for start in range(0, table.num_rows - 1, block):
            stop = min(start + block, table.num_rows - 1)
            for path, leaf in table.observations.items():
                after = read_rows(leaf, start + 1, stop + 1)
                promised = read_rows(table.next_observations[path], start, stop).astype(after.dtype, copy=False)
                followed[start:stop] &= rows_equal(after, promised)
    followed[-1] = True
    unfollowed = ~followed & ~flagged
    shifted = followed & flagged if table.next_observations else np.zeros_like(flagged)
    shifted[-1] = False
    return unfollowed, shifted


def _notes(
    table: _Table, episodes: _EpisodeRows, both: Array, unfollowed: Array, shifted: Array, episode_length: int | None
) -> Iterator[str]:
    if TERMINALS not in table.flags:
        yield "there is no 'terminals': no episode counts as terminal"
    lengths = episodes.stops - episodes.starts
    if TIMEOUTS not in table.flags and not table.next_observations and episode_length is None:
        yield (
            "there is no 'timeouts': an episode that a time limit ended cannot be told from the next one and joins it "
            f"(the longest has {lengths.max():,} rows); where there was a limit, {_BY_LENGTH}"
        )
    if both.any():
        yield f"'terminals' and 'timeouts' are both set on {_count(both, 'row')}: terminal"
    if unfollowed.any():
        yield (
            f"an episode ends without a flag after {_count(unfollowed, 'row')}: the next observation is not the "
            "observation of the following row"
        )
    if not episodes.flagged[-1] and not unfollowed[-1]:
        yield f"the last row, {table.num_rows - 1}, ends no episode by a flag: its episode counts as truncated"
    if shifted.any():
        yield (
            f"the next observation at {_count(shifted, 'episode end')} is the first observation of the following "
            "episode: right where the environment went on without a reset; else 'next_observations' are 'observations' "
            "moved by a row, and have to be left out"
        )
    single = np.zeros([table.num_rows], bool)
    single[episodes.starts[lengths == 1]] = True
    if single.any():
        yield f"episodes of one row: {_count(single, 'row')}"


def _count(rows: Array, what: str) -> str:
    """How many rows there are, and the first few of them."""
    indices = np.flatnonzero(rows)
    named = ", ".join(map(str, indices[:_MAX_NAMED].tolist())) + (", ..." if len(indices) > _MAX_NAMED else "")
    return f"{len(indices):,} {what}{'' if len(indices) == 1 else 's'} ({named})"


def _runs(order: Array, episodes: _EpisodeRows, max_rows: int) -> Iterator[list[int]]:
    """Episodes in order, grouped where they lie one after the other and are few rows, to be read at once."""
    run: list[int] = []
    for index in order.tolist():
        if run and (index != run[-1] + 1 or episodes.stops[index] - episodes.starts[run[0]] > max_rows):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _read_run(table: _Table, episodes: _EpisodeRows, run: list[int]) -> Iterator[RawEpisode]:
    begin, end = int(episodes.starts[run[0]]), int(episodes.stops[run[-1]])
    block = {path: read_rows(leaf, begin, end) for path, leaf in table.fields.items()}
    for index in run:
        start, stop = int(episodes.starts[index]), int(episodes.stops[index])
        rows = {path: leaf[start - begin : stop - begin] for path, leaf in block.items()}
        observation = {path: rows.pop(path) for path in table.observations}
        is_terminal = bool(episodes.terminal[index])
        has_final = bool(table.next_observations) or is_terminal
        if has_final:
            observation = {
                path: extend(
                    leaf, read_rows(table.next_observations[path], stop - 1, stop) if table.next_observations else None
                )
                for path, leaf in observation.items()
            }
        ends = np.zeros([stop - start], bool)
        ends[-1] = episodes.flagged[index]
        columns = step_columns(
            nest_of_paths(observation)[OBSERVATION],
            nest_of_paths(rows),
            terminals=ends & is_terminal,
            ends=ends,
            num_rows=stop - start,
            has_final=has_final,
        )
        yield RawEpisode(str(index), columns, id=f"{table.name}[{start}:{stop}]", place=index)
