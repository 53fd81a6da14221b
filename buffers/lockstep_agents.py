"""Many agents in lockstep: how moments become joint frames of one buffer, and samples come back with masks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .agent_frames import JointFrame, joint_frame_spec, life_mask, life_mask_in_graph
from .agent_gather import frames_of_agents
from .agent_input import AgentAdd
from .agent_lives import AgentLives, Moment
from .agent_policies import AgentPolicies
from .base import BufferInfo, Items, ReplayBuffer
from .episode_ends import EpisodeRule
from .nests import Array, Nest
from .priorities import errors_of_rows

NO_ID = -1


class LockstepAgents:
    """Writes what all agents do at the same time into one buffer, an environment a stream.

    Args:
      known: the agents.
      buffer: of `frame_spec`, with `B` streams that may part.
      batch_size: `B`, environments.
      rules: by agent, tells where its episodes begin and end.
    """

    def __init__(
        self,
        known: AgentPolicies,
        buffer: ReplayBuffer,
        batch_size: int,
        rules: Mapping[str, EpisodeRule],
    ) -> None:
        self._known = known
        self._buffer = buffer
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._times = np.zeros(batch_size, np.int64)
        self._rules = dict(rules)
        self._told_by_spec = _told_by_spec(rules)
        self._lives = AgentLives(len(known.agents), batch_size)
        # What stands in the rows of agents that are absent everywhere, by the number of rows and of steps.
        self._absent: dict[tuple[str, tuple[int, ...]], list[Array]] = {}

    @staticmethod
    def frame_spec(known: AgentPolicies, rules: Mapping[str, EpisodeRule]) -> JointFrame:
        """What the buffer stores."""
        return joint_frame_spec(known.data_specs, told_by_spec=_told_by_spec(rules))

    def add(self, add: AgentAdd, priorities: Any) -> Array:
        """Stores a moment, or a sequence of them; ids int64 `[B]` (`[B, T]`), -1 where no agent is present."""
        outer = (self._batch_size,) if add.num_steps is None else (self._batch_size, add.num_steps)
        with self._lock:
            there = add.is_present(self._batch_size)
            environments = np.flatnonzero(there)
            ids = np.full(outer, NO_ID)
            if len(environments) and 0 not in outer:
                ids[environments] = self._store(add, environments, outer, priorities)
                self._times[environments] += 1 if add.num_steps is None else add.num_steps
            if add.ends is not None:
                for b in np.flatnonzero(add.ends & ~there).tolist():
                    self._end(b)
        return ids

    def end_stream(self, environment: int | None, agent: str | None) -> None:
        """The episode of an environment (None: of all) ends; or only the life of one agent in it."""
        with self._lock:
            if agent is None:
                self._end(environment)
            else:
                chosen = slice(None) if environment is None else slice(environment, environment + 1)
                self._lives.end(chosen, self._known.agents.index(agent))

    def clear(self) -> None:
        """The buffer is empty, and moments are counted on."""
        with self._lock:
            self._buffer.clear()
            self._lives.end(slice(None))

    def gather_all(self) -> dict[str, Nest]:
        """By agent every frame held of it, oldest first, ragged leaves: rows are those of the buffer's own."""
        return frames_of_agents(self._buffer.gather_all())

    def errors_of_rows(self, info: BufferInfo, td_errors: Any, eta: float, burn_in: int) -> tf.Tensor:
        """One absolute error a window, float `[B]`: the mean over the agents that have a frame in it.

        Args:
          info: of a sample, masks by agent.
          td_errors: by agent, as `ReplayBuffer.update_priorities_from` takes them.
          eta: between the mean (0) and the largest (1) of a window's absolute errors.
          burn_in: the window's.

        Raises:
          ValueError: they are not by agent, or do not fit.
        """
        if not isinstance(td_errors, Mapping) or not td_errors:
            raise ValueError(f"td_errors must be a dict by agent in lockstep, got {type(td_errors).__name__}.")
        self._known.check_agents("td_errors", td_errors)
        sums, nums = [], []
        for agent, errors in td_errors.items():
            mask = info.mask[agent]
            there = mask if mask.shape.rank == info.keys.shape.rank else tf.reduce_any(mask[:, burn_in:], axis=1)
            rows = tf.abs(tf.cast(errors_of_rows(errors, mask, eta, burn_in), tf.float64))
            sums.append(tf.where(there, rows, tf.zeros_like(rows)))
            nums.append(tf.cast(there, tf.float64))
        return tf.add_n(sums) / tf.maximum(tf.add_n(nums), 1)

    def unpack(self, items: Items, info: BufferInfo, drawn: int) -> tuple[Items, BufferInfo]:
        """A sample of the buffer as its user sees it: eager tensors, or in a graph.

        Args:
          items: `JointFrame`, leaves `[B, T, ...]`.
          info: of the sample.
          drawn: index of the drawn frame.
        """
        agents = self._known.agents
        is_window = info.mask.shape.rank > info.keys.shape.rank
        # As windows `[n, T, agents]`, whatever is there of `B` and `T`.
        missing = [axis for axis, is_there in ((0, info.keys.shape.rank > 0), (1, is_window)) if not is_there]
        if tf.is_symbolic_tensor(items.codes):
            codes, mask = items.codes, info.mask
            for axis in missing:
                codes, mask = tf.expand_dims(codes, axis), tf.expand_dims(mask, axis)
            real = life_mask_in_graph(codes, mask, drawn)
            masks = [tf.squeeze(each, missing) if missing else each for each in tf.unstack(real, axis=-1)]
        else:
            codes, mask = items.codes.numpy(), info.mask.numpy()
            for axis in missing:
                codes, mask = np.expand_dims(codes, axis), np.expand_dims(mask, axis)
            real = np.squeeze(life_mask(codes, mask, drawn), tuple(missing))
            masks = [tf.constant(real[..., index]) for index in range(len(agents))]
        return items.frames, info._replace(mask=dict(zip(agents, masks, strict=True)), times=items.time)

    def _store(self, add: AgentAdd, environments: Array, outer: tuple[int, ...], priorities: Any) -> Array:
        """Stores the moments of these environments; ids `[m]` (`[m, T]`)."""
        num_rows = (len(environments), *outer[1:])
        row_of = np.full(self._batch_size, -1)
        row_of[environments] = np.arange(len(environments))
        frames, flags = {}, np.zeros((4, len(self._known.agents), *outer), bool)
        for index, agent in enumerate(self._known.agents):
            rows = add.rows.get(agent)
            spec = self._known.specs[agent]
            if rows is None:
                frames[agent] = spec.pack(self._zeros(agent, num_rows))
                continue
            marks = self._rules[agent].marks(rows.leaves, rows.ends)
            flags[0, index, rows.environments] = True
            for flag, told in zip(flags[1:], marks, strict=True):
                if told is not None:
                    flag[index, rows.environments] = told
            leaves = rows.leaves
            if len(rows.environments) < len(environments):
                leaves = [zeros.copy() for zeros in self._zeros(agent, num_rows)]
                for leaf, mine in zip(leaves, rows.leaves, strict=True):
                    leaf[row_of[rows.environments]] = mine
            frames[agent] = spec.pack(leaves)
        moment = self._moments(flags, add)
        begins, ends = moment.begins[environments], moment.ends[environments]
        if add.num_steps is not None:
            ends[:, :-1] |= begins[:, 1:]
            begins = begins[:, 0]
        for b in environments[begins].tolist():
            self._buffer.end_stream(b)
        final = moment.final[environments]
        times = self._times[environments]
        if add.num_steps is not None:
            times = times[:, None] + np.arange(add.num_steps)
        frame = JointFrame(frames, moment.codes[environments], times, final if self._told_by_spec else ())
        ends = ends & ~final if self._told_by_spec else ends
        everywhere = len(environments) == self._batch_size
        write = self._buffer.add_batch if add.num_steps is None else self._buffer.add_sequence
        if priorities is not None and not everywhere:
            priorities = np.asarray(priorities)[environments]
        ids = write(
            frame,
            end_of_episode=ends if ends.any() else None,
            priorities=priorities,
            streams=None if everywhere else environments,
        )
        self._lives.commit(moment)
        return ids

    def _moments(self, flags: Array, add: AgentAdd) -> Moment:
        """What the moments are, `[B, ...]` or `[B, T, ...]`, of flags bool `[4, agents, B(, T)]`."""
        none = np.zeros(self._batch_size, bool)
        if add.num_steps is None:
            return self._lives.step(*flags, none if add.ends is None else add.ends)
        lives, steps = self._lives.copy(), []
        for t in range(add.num_steps):
            steps.append(lives.step(*flags[..., t], none))
            lives.commit(steps[-1])
        return Moment(
            *(np.stack(each, axis=1) for each in zip(*(step[:4] for step in steps), strict=True)), lives.alive
        )

    def _zeros(self, agent: str, outer: tuple[int, ...]) -> list[Array]:
        zeros = self._absent.get((agent, outer))
        if zeros is None:
            fields = self._known.specs[agent].fields
            zeros = [np.zeros((*outer, *field.shape), field.numpy_dtype) for field in fields]
            self._absent = {key: value for key, value in self._absent.items() if key[1] == outer}
            self._absent[agent, outer] = zeros
        return zeros

    def _end(self, environment: int | None) -> None:
        self._buffer.end_stream(environment)
        self._lives.end(slice(None) if environment is None else slice(environment, environment + 1))


def _told_by_spec(rules: Mapping[str, EpisodeRule]) -> bool:
    return any(rule.told_by_spec for rule in rules.values())
