"""Many agents in lockstep: how moments become joint frames of one buffer, and samples come back with masks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from .agent_frames import PRESENT, JointFrame, joint_frame_spec, life_mask, life_mask_in_graph
from .agent_gather import all_frames, frames_of_agents
from .agent_info import LockstepInfo
from .agent_input import AgentAdd, AgentRows, add_one_by_one
from .agent_lives import AgentLives, Moment
from .agent_policies import AgentPolicies
from .base import BufferInfo, Items, ReplayBuffer
from .episode_ends import EpisodeMarks, EpisodeRule
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
      together: streams do not part: each add has somebody in every environment, or nobody at all.
    """

    def __init__(
        self,
        known: AgentPolicies,
        buffer: ReplayBuffer,
        batch_size: int,
        rules: Mapping[str, EpisodeRule],
        *,
        together: bool = False,
    ) -> None:
        self._together = together
        self._known = known
        self._buffer = buffer
        self._batch_size = batch_size
        # Held while a moment is written; whoever holds it sees whole moments only.
        self.lock = threading.Lock()
        self._everywhere = np.arange(batch_size)
        self._times = np.zeros(batch_size, np.int64)
        self._rules = dict(rules)
        self._is_silent = {agent: rule.is_silent for agent, rule in rules.items()}
        self._told_by_spec = _told_by_spec(rules)
        self._lives = AgentLives(len(known.agents), batch_size)
        self._stored_order = sorted(known.agents)  # as nests order dicts
        self._write = buffer._adds.add_checked
        none = np.zeros(batch_size, bool)
        codes = np.full((batch_size, len(known.agents)), PRESENT, np.uint8)
        # A moment in which all are alive and nothing happens.
        all_alive = np.ones((len(known.agents), batch_size), bool)
        self._quiet = Moment(codes, none, none, none, all_alive, ~all_alive)
        self._real: tuple[Any, tf.Tensor] | None = None
        # What stands in the rows of agents that are absent everywhere, by the number of rows and of steps.
        self._absent: dict[tuple[str, tuple[int, ...]], list[Array]] = {}

    @staticmethod
    def frame_spec(known: AgentPolicies, rules: Mapping[str, EpisodeRule]) -> JointFrame:
        """What the buffer stores."""
        return joint_frame_spec(known.data_specs, told_by_spec=_told_by_spec(rules))

    def add(self, add: AgentAdd, priorities: Array | None) -> Array:
        """Stores a moment, or a sequence of them; ids int64 `[B]` (`[B, T]`), -1 where no agent is present."""
        if add.ends_absent_agents:
            of_moments: Array = add_one_by_one(self.add, add, priorities, self._batch_size)
            return of_moments
        outer = (self._batch_size,) if add.num_steps is None else (self._batch_size, add.num_steps)
        num_moments = 1 if add.num_steps is None else add.num_steps
        with self.lock:
            if add.is_everywhere and add.rows and num_moments and not add.ended:
                ids = self._store(add, self._everywhere, outer, priorities)
                self._times += num_moments
                return ids
            there = add.is_present(self._batch_size)
            environments = np.flatnonzero(there)
            if self._together and there.any() and not there.all():
                raise ValueError(
                    f"no agent is present in environment {np.flatnonzero(~there)[0]}, and this buffer was built with "
                    "streams='together': build it with streams='apart'."
                )
            ids = np.full(outer, NO_ID)
            if len(environments) and num_moments:
                ids[environments] = self._store(add, environments, outer, priorities)
                self._times[environments] += num_moments
            for agent, ended in add.ended.items():
                self._end_lives(agent, ended)
            if add.ends is not None and add.num_steps is None:
                self._end(np.flatnonzero(add.ends & ~there))
        return ids

    def end_stream(self, environment: int | None, agent: str | None) -> None:
        """The episode of an environment (None: of all) ends; or only the life of one agent in it."""
        chosen = self._everywhere if environment is None else self._everywhere[environment : environment + 1]
        with self.lock:
            if agent is None:
                self._end(chosen)
            else:
                self._end_lives(agent, chosen)

    def expect_windows(self) -> None:
        """Says that moments which follow each other are drawn together, so that ends matter."""
        for rule in self._rules.values():
            rule.expect_windows()

    def clear(self) -> None:
        """The buffer is empty, and moments are counted on."""
        with self.lock:
            self._buffer.clear()
            self.forget_lives()

    def forget_lives(self) -> None:
        """Nobody is alive any more; the lock is held."""
        self._lives.end_environments(self._everywhere)

    def held(self) -> dict[str, Array]:
        """What decides how it goes on, by name, agents in alphabetical order; the lock is held."""
        return {"times": self._times.copy(), "alive": self._lives.alive, "parted": self._lives.parted}

    def loose_flags(self) -> dict[str, str | None]:
        """By agent `EpisodeRule.loose_flag`; the lock is held."""
        return {agent: rule.loose_flag for agent, rule in self._rules.items()}

    def take_over(self, held: Mapping[str, Array], loose_flags: Mapping[str, str | None]) -> None:
        """Goes on where another was, these being what it had; `held` is kept. The lock is held."""
        self._times = held["times"]
        self._lives.take_over(held["alive"], held["parted"])
        for agent, rule in self._rules.items():
            rule.restore_loose_flag(loose_flags[agent])

    def gather_all(self) -> dict[str, Nest]:
        """By agent every frame held of it, oldest first, ragged leaves: rows are those of the buffer's own."""
        return frames_of_agents(all_frames(self._buffer), self._known.agents)

    def errors_of_rows(self, info: LockstepInfo, td_errors: Any, eta: float, burn_in: int) -> tf.Tensor:
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

    def unpack(
        self, items: Items, info: BufferInfo, drawn: int, *, is_all_real: bool = False, sizes: Any = None
    ) -> tuple[Items, LockstepInfo]:
        """A sample of the buffer as its user sees it: eager tensors, or in a graph.

        Args:
          items: `JointFrame`, leaves `[B, T, ...]`.
          info: of the sample.
          drawn: index of the drawn frame.
          is_all_real: nothing in these windows is padding.
          sizes: what was asked for, the same for samples of the same shapes.
        """
        agents = self._known.agents
        masks: list[tf.Tensor]
        if tf.is_symbolic_tensor(items.codes):
            codes, mask = items.codes, info.mask
            missing = _missing_axes(info)
            for axis in missing:
                codes, mask = tf.expand_dims(codes, axis), tf.expand_dims(mask, axis)
            real = life_mask_in_graph(codes, mask, drawn)
            masks = [tf.squeeze(each, missing) if missing else each for each in tf.unstack(real, axis=-1)]
        else:
            codes = items.codes.numpy()
            if is_all_real and not (codes != PRESENT).any():
                masks = self._all_real(info.mask, sizes)
            else:
                mask = info.mask.numpy()
                missing = _missing_axes(info)
                for axis in missing:
                    codes, mask = np.expand_dims(codes, axis), np.expand_dims(mask, axis)
                real = np.squeeze(life_mask(codes, mask, drawn), tuple(missing))
                masks = tf.unstack(tf.constant(np.moveaxis(real, -1, 0)))
        times = items.time if is_all_real else tf.where(info.mask, items.time, tf.constant(-1, tf.int64))
        return items.frames, LockstepInfo(*info[:4], dict(zip(agents, masks, strict=True)), times)

    def _all_real(self, mask: tf.Tensor, sizes: Any) -> list[tf.Tensor]:
        """Masks of a sample in which every agent is there, made once while sizes stay the same."""
        if self._real is None or self._real[0] != sizes:
            self._real = (sizes, tf.ones_like(mask))
        return [self._real[1]] * len(self._known.agents)

    def _store(self, add: AgentAdd, environments: Array, outer: tuple[int, ...], priorities: Any) -> Array:
        """Stores the moments of these environments; ids `[m]` (`[m, T]`)."""
        marks = {
            agent: self._rules[agent].marks(rows.leaves, rows.ends, None if add.is_everywhere else rows.environments)
            for agent, rows in add.rows.items()
            if rows.ends is not None or not self._is_silent[agent]
        }
        everywhere = len(environments) == self._batch_size
        leaves: list[Array]
        if add.is_everywhere and len(add.rows) == len(self._stored_order):
            leaves = [leaf for agent in self._stored_order for leaf in add.rows[agent].leaves]
        else:
            leaves = []
            for agent in self._stored_order:
                rows = add.rows.get(agent)
                leaves += self._all_rows(agent, rows, environments, (len(environments), *outer[1:]))
        if self._is_quiet(add, marks):
            leaves += [self._quiet.codes, self._times]
            if self._told_by_spec:
                leaves.append(self._quiet.final)
            ids = self._write(leaves, None, None, priorities, None)
            self._lives.commit(self._quiet)
            return ids
        moment = self._moments(add, marks, outer)
        begins, ends, final = (flags[environments] for flags in moment[1:4])
        if add.num_steps is not None:
            ends[:, :-1] |= begins[:, 1:]
            begins = begins[:, 0]
        for b in environments[begins].tolist():
            self._buffer.end_stream(b)
        times = self._times[environments]
        if add.num_steps is not None:
            times = times[:, None] + np.arange(add.num_steps)
        leaves += [moment.codes[environments], times]
        if self._told_by_spec:
            leaves.append(final)
            ends &= ~final
        if priorities is not None and not everywhere:
            priorities = priorities[environments]
        ids = self._write(
            leaves,
            add.num_steps,
            ends if ends.any() else None,
            priorities,
            None if everywhere else environments,
        )
        self._lives.commit(moment)
        return ids

    def _all_rows(self, agent: str, rows: AgentRows | None, environments: Array, outer: tuple[int, ...]) -> list[Array]:
        """Leaves of an agent in all of these environments, zeros where it is absent."""
        if rows is not None and len(rows.environments) == len(environments):
            return rows.leaves
        zeros = self._zeros(agent, outer)
        if rows is None:
            return zeros
        leaves = [leaf.copy() for leaf in zeros]
        mine = np.searchsorted(environments, rows.environments)
        for leaf, given in zip(leaves, rows.leaves, strict=True):
            leaf[mine] = given
        return leaves

    def _is_quiet(self, add: AgentAdd, marks: Mapping[str, EpisodeMarks]) -> bool:
        """Whether this is one moment, all agents are there, and none is born or dies: what most adds are."""
        if add.num_steps is not None or add.ends is not None or not add.is_everywhere or not self._lives.is_quiet:
            return False
        if len(add.rows) < len(self._known.agents):
            return False
        return not any(
            flags is not None and flags.any() for mark in marks.values() for flags in (mark.begins, mark.ends)
        )

    def _moments(self, add: AgentAdd, marks: Mapping[str, EpisodeMarks], outer: tuple[int, ...]) -> Moment:
        """What the moments are, `[B, ...]` or `[B, T, ...]`."""
        flags = np.zeros((4, len(self._known.agents), *outer), bool)
        for index, agent in enumerate(self._known.agents):
            if agent in add.rows:
                environments = add.rows[agent].environments
                flags[0, index, environments] = True
                for flag, told in zip(flags[1:], marks.get(agent, (None,) * 3), strict=True):
                    if told is not None:
                        flag[index, environments] = told
        none = np.zeros(self._batch_size, bool)
        present, begins, ends, final = flags
        if add.num_steps is None:
            return self._lives.step(present, begins, ends, final, none if add.ends is None else add.ends)
        return self._moments_of_sequence(present, begins, ends, final)

    def _moments_of_sequence(self, present: Array, begins: Array, ends: Array, final: Array) -> Moment:
        """What the moments `[B, T]` of a sequence are; flags are bool `[agents, B, T]`."""
        lives, num_steps = self._lives.copy(), present.shape[-1]
        none = np.zeros(self._batch_size, bool)
        codes = np.ascontiguousarray(np.moveaxis(PRESENT * present.astype(np.uint8), 0, -1))
        restarted, over, all_final = np.zeros((3, self._batch_size, num_steps), bool)
        # Nothing to look at is where no life begins or ends, and none that was parted goes on.
        is_event = (begins | ends).any(axis=(0, 1))
        if not lives.is_quiet:
            is_event[:1] = True
            is_event[1:] |= (present[..., 1:] != present[..., :-1]).any(axis=(0, 1))
        seen = 0
        for t in (*np.flatnonzero(is_event).tolist(), num_steps):
            if t > seen:
                there = lives.alive | present[..., seen:t].any(axis=-1)
                lives.commit(self._quiet._replace(alive=there, parted=lives.parted))
            if t < num_steps:
                step = lives.step(present[..., t], begins[..., t], ends[..., t], final[..., t], none)
                lives.commit(step)
                codes[:, t], restarted[:, t], over[:, t], all_final[:, t] = step[:4]
            seen = t + 1
        return Moment(codes, restarted, over, all_final, lives.alive, lives.parted)

    def _zeros(self, agent: str, outer: tuple[int, ...]) -> list[Array]:
        zeros = self._absent.get((agent, outer))
        if zeros is None:
            fields = self._known.specs[agent].fields
            zeros = [np.zeros((*outer, *field.shape), field.numpy_dtype) for field in fields]
            self._absent = {key: value for key, value in self._absent.items() if key[1] == outer}
            self._absent[agent, outer] = zeros
        return zeros

    def _end_lives(self, agent: str, environments: Array) -> None:
        """The agent's lives in these environments, int64 `[n]`, are over, and with the last one an episode."""
        self._rules[agent].forget_loose_flags()
        self._end(self._lives.end_lives(self._known.agents.index(agent), environments))

    def _end(self, environments: Array) -> None:
        """The episodes of these environments, int64 `[n]`, are over."""
        for b in environments.tolist():
            self._buffer.end_stream(b)
        self._lives.end_environments(environments)
        if len(environments):
            for rule in self._rules.values():
                rule.forget_loose_flags()


def _missing_axes(info: BufferInfo) -> list[int]:
    """Which of the axes `B` and `T` a sample has not."""
    num_outer = info.keys.shape.rank
    return [axis for axis, is_there in ((0, num_outer > 0), (1, info.mask.shape.rank > num_outer)) if not is_there]


def _told_by_spec(rules: Mapping[str, EpisodeRule]) -> bool:
    return any(rule.told_by_spec for rule in rules.values())
