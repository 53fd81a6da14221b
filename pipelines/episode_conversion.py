"""From one raw episode to checked frames: the rules of `load_rlds`, in the order in which they apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from replayfeed.buffers.nests import Nest, field_path, leaves_with_paths

from .episode_source import EpisodeSource, RawEpisode
from .layouts import convert_steps, example_columns, example_steps, spec_of_frames, to_steps
from .load_options import LoadOptions
from .rlds_compat import tf_agents_trajectory
from .rlds_fields import spec_fault
from .rlds_steps import (
    Columns,
    Fault,
    Steps,
    aligned,
    check_step_spec,
    cut_steps,
    ends_in_zeros,
    find_fault,
    num_steps_of,
)
from .step_additions import (
    EPISODE_METADATA,
    NEXT_OBSERVATION_IS_FILLER,
    OBSERVATION_IS_FILLER,
    RETURN_TO_GO,
    value_at,
    with_absorbing_state,
    with_episode_fields,
    with_return_to_go,
    with_zero_observation_told,
)


class Converted(NamedTuple):
    """What became of a raw episode.

    Attributes:
      steps: the sound episode, with what the options add; None: it is left out.
      frames: of the steps, leaves `[T, ...]`; None with them.
      fault: what is wrong with it; None: nothing.
      num_steps: in the raw episode.
      is_terminal: it ended, before anything was added.
      ends_in_zeros: its final observation was recorded as zeros.
    """

    steps: Steps | None
    frames: Nest | None
    fault: Fault | None
    num_steps: int
    is_terminal: bool = False
    ends_in_zeros: bool = False


class Conversion:
    """The rules for the episodes of one source.

    Args:
      source: where the episodes come from; only its specs are looked at.
      options: what the caller decided.

    Raises:
      ValueError: the source's steps lack a field, or an option does not fit them.
    """

    def __init__(self, source: EpisodeSource, options: LoadOptions) -> None:
        check_step_spec(source.name, source.step_spec)
        _check_fixed_width(source)
        self._options = options
        places = {field_path(path): spec for path, spec in leaves_with_paths(source.metadata_spec, ())}
        unknown = [name for name in options.episode_fields if name not in source.metadata_spec and name not in places]
        if unknown:
            raise ValueError(
                f"{source.name}: episode_fields names {', '.join(map(repr, unknown))}; the episodes' own fields are "
                f"{sorted(places)}."
            )
        self._check_agent_field(source)
        self.splits_episodes = options.agent_field is not None and options.agent_field not in source.metadata_spec
        """Whether an episode of the source may hold those of several agents."""
        metadata = {name: _example_of(source, name) for name in options.episode_fields}
        steps = self._with_additions(example_steps(source.step_spec, options.numpy_reward_dtype), metadata)
        self.sound_step_spec: Mapping[str, Nest] = spec_of_frames(to_steps(steps))
        self.element_spec: Nest = spec_of_frames(self._frames(steps, example_columns(source.step_spec)))

    def by_agent(self, raw: RawEpisode) -> Iterator[tuple[str | None, RawEpisode]]:
        """The episode, or one for each agent whose steps are in it, with the agent's name."""
        field = self._options.agent_field
        if field is None:
            yield None, raw
        elif field in raw.metadata:
            yield _agent_name(np.asarray(raw.metadata[field]).reshape(-1)[0]), raw
        elif len({len(column) for column in tf.nest.flatten(dict(raw.columns))}) > 1:
            # Its rows cannot be told apart: a fault, which `convert` finds.
            yield None, raw
        else:
            agents, first_rows, of_row = np.unique(
                np.asarray(raw.columns[field]).reshape(-1), return_index=True, return_inverse=True
            )
            for index in np.argsort(first_rows):
                rows = np.flatnonzero(of_row == index)
                columns = tf.nest.map_structure(lambda column, rows=rows: column[rows], dict(raw.columns))
                yield _agent_name(agents[index]), raw._replace(columns=_as_one_episode(columns))

    def convert(self, raw: RawEpisode) -> Converted:
        """Checks the episode, and cuts it to what is sound of it."""
        options = self._options
        columns = aligned(raw.columns, options.alignment)
        fault = find_fault(columns, invalid=raw.invalid, dtype=options.numpy_reward_dtype)
        num_steps = num_steps_of(columns)
        num_kept = num_steps if fault is None else (fault.num_kept or 0)
        if fault is not None and options.on_bad_episode != "repair":
            num_kept = 0
        if num_kept < (2 if options.compat is None else 1):
            return Converted(None, None, fault, num_steps)
        plain = cut_steps(columns, num_kept, options.numpy_reward_dtype)
        steps = self._with_additions(plain, raw.metadata)
        if options.return_to_go is not None and not np.isfinite(steps.metadata[RETURN_TO_GO]).all():
            beyond = Fault("with a return beyond its dtype", "a return to go is too large for reward_dtype", None)
            return Converted(None, None, beyond, num_steps)
        frames = self._frames(steps, columns)
        return Converted(steps, frames, fault, num_steps, plain.is_terminal, ends_in_zeros(plain))

    def _frames(self, steps: Steps, columns: Columns) -> Nest:
        options = self._options
        if options.compat is not None:
            kept = len(steps.discount) + 1
            return tf_agents_trajectory(tf.nest.map_structure(lambda column: column[:kept], dict(columns)))
        policy_info = options.policy_info
        if options.layout == "trajectory" and not callable(policy_info):
            added = self._added_names()
            policy_info = (*(policy_info or ()), *added) or None
        frames = convert_steps(steps, options.layout, policy_info)
        if options.layout == "transition" and options.zero_observation == "mark":
            # What is marked ends an episode, so that it begins no transition: the mark goes where one leads to it.
            del frames[OBSERVATION_IS_FILLER]
            frames[NEXT_OBSERVATION_IS_FILLER] = steps.metadata[OBSERVATION_IS_FILLER][1:]
        return frames

    def _added_names(self) -> list[str]:
        options = self._options
        return [
            *([RETURN_TO_GO] if options.return_to_go is not None else []),
            *([OBSERVATION_IS_FILLER] if options.zero_observation == "mark" else []),
            *([EPISODE_METADATA] if options.episode_fields else []),
        ]

    def _with_additions(self, steps: Steps, metadata: Mapping[str, Nest]) -> Steps:
        options = self._options
        field = options.agent_field
        if field is not None and field in steps.metadata and steps.metadata[field].dtype == object:
            # It has told whose steps they are; no buffer could hold it.
            steps = steps._replace(metadata={name: column for name, column in steps.metadata.items() if name != field})
        steps = with_zero_observation_told(steps, options.zero_observation)
        if options.return_to_go is not None:
            steps = with_return_to_go(steps, options.return_to_go)
        if options.episode_fields:
            chosen = {name: value_at(metadata, name) for name in options.episode_fields}
            steps = with_episode_fields(steps, chosen)
        return with_absorbing_state(steps) if options.absorbing else steps

    def _check_agent_field(self, source: EpisodeSource) -> None:
        field = self._options.agent_field
        if field is None:
            return
        spec = source.metadata_spec.get(field, source.step_spec.get(field))
        if not isinstance(spec, tf.TensorSpec) or spec.shape.as_list() not in ([], [1]):
            raise ValueError(
                f"{source.name}: agent_field={field!r} must name one value of an episode or a step; the episodes have "
                f"{sorted(source.metadata_spec)}, the steps {sorted(source.step_spec)}."
            )


def _check_fixed_width(source: EpisodeSource) -> None:
    """Refuses what a source gives that was opened with `fields='all'`."""
    for path, spec in leaves_with_paths(source.step_spec, ()):
        fault = spec_fault(spec, keeps_strings=True)
        if fault:
            raise ValueError(
                f"{source.name}: step field {field_path(path)!r} {fault}, so that it cannot be part of a frame; "
                "fields='all' is for checking and writing."
            )


def _example_of(source: EpisodeSource, name: str) -> Nest:
    """Zeros in place of an episode's own field."""

    def zero(spec: Any) -> Any:
        fault = spec_fault(spec)
        if fault:
            raise ValueError(
                f"{source.name}: episode_fields names {name!r}, which {fault}, so no frame can hold it; "
                "Episode.metadata has it for each episode."
            )
        return np.zeros(spec.shape, spec.dtype.as_numpy_dtype)

    return tf.nest.map_structure(zero, value_at(source.metadata_spec, name))


def _agent_name(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _as_one_episode(columns: Columns) -> Columns:
    """The rows of one agent as an episode of its own: its first row begins it, its last one ends it."""
    flags = {}
    for name, at in (("is_first", 0), ("is_last", -1)):
        if name in columns:
            flags[name] = np.zeros_like(columns[name])
            flags[name][at] = True
    return {**columns, **flags}
