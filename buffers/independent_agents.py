"""Many agents, each policy with a buffer of its own: how moments become frames of policies, and samples come back."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .agent_frames import AgentFrame, agent_frame_spec, stream_of
from .agent_gather import all_frames, frames_of_streams
from .agent_info import AgentInfo
from .agent_input import AgentAdd, AgentRows, add_one_by_one
from .agent_policies import AgentPolicies
from .base import BufferInfo, Items, ReplayBuffer
from .memory import copy_to_tensor
from .nests import Array, Nest

NO_ID = -1


class IndependentAgents:
    """Writes what agents do into the buffers of their policies, an (agent, environment) pair a stream.

    Args:
      known: the agents.
      buffers: by policy, each of `frame_spec`, with `num_streams` streams that may part.
      batch_size: `B`, environments.
      together: streams do not part: each add brings all agents of a policy, or none.
    """

    def __init__(
        self, known: AgentPolicies, buffers: Mapping[str, ReplayBuffer], batch_size: int, *, together: bool = False
    ) -> None:
        self._known = known
        self._buffers = dict(buffers)
        self._batch_size = batch_size
        self._together = together
        # Held while a moment is written; whoever holds it sees whole moments only.
        self.lock = threading.Lock()
        # For each environment the number of its next moment.
        self._times = np.zeros(batch_size, np.int64)
        # By agent the environments in which its newest frame may be followed by another.
        self._open = {agent: np.zeros(batch_size, bool) for agent in known.agents}  # replaced, never changed
        self._all = np.ones(batch_size, bool)
        self._streams = {agent: known.place_of(agent) * batch_size + np.arange(batch_size) for agent in known.agents}
        self._as_fields = {
            agent: stream_of(known.place_of(agent), np.arange(batch_size), len(known.agents_of(known.policy_of(agent))))
            for agent in known.agents
        }
        # Whether no two agents share a policy, and how frames of each agent are written.
        self._alone = len(known.policies) == len(known.agents)
        self._writers = {agent: self._buffers[known.policy_of(agent)]._adds.add_checked for agent in known.agents}
        # By policy the numbers of its agents among those given, and where it is one that number for a whole batch.
        self._numbers = {
            policy: np.array([known.given.index(agent) for agent in known.agents_of(policy)], np.int32)
            for policy in known.policies
        }
        self._constant: dict[str, tuple[int | None, tf.Tensor]] = {}

    @staticmethod
    def frame_spec(known: AgentPolicies, policy: str, batch_size: int) -> AgentFrame:
        """What the buffer of a policy stores."""
        first = known.agents_of(policy)[0]
        several = IndependentAgents.num_streams(known, policy, batch_size) > 1
        return agent_frame_spec(known.specs[first].nest, has_stream=several)

    @staticmethod
    def num_streams(known: AgentPolicies, policy: str, batch_size: int) -> int:
        """How many streams the buffer of a policy has."""
        return len(known.agents_of(policy)) * batch_size

    def add(self, add: AgentAdd, joint_priorities: Array | None = None) -> dict[str, Array]:
        """Stores a moment, or a sequence of them; ids int64 `[B]` (`[B, T]`) by agent, -1 where it is absent.

        There are no priorities of moments.
        """
        if self._together:
            self._check_together(add)
        if add.ends_absent_agents:
            by_agent: dict[str, Array] = add_one_by_one(self.add, add, None, self._batch_size)
            return by_agent
        ids: dict[str, Array] = {}
        with self.lock:
            times = self._times if add.num_steps is None else self._times[:, None] + np.arange(add.num_steps)
            try:
                if add.is_everywhere and self._alone:
                    for agent, rows in add.rows.items():
                        ids[agent] = self._add_alone(agent, rows, times, add.num_steps)
                else:
                    for policy in self._known.policies:
                        parts = {agent: add.rows[agent] for agent in self._known.agents_of(policy) if agent in add.rows}
                        if parts:
                            ids.update(self._add_of(policy, parts, times, add.num_steps))
            except BaseException:
                # What other policies have stored stays, and its moment must not come again.
                if ids:
                    self._note(add)
                raise
            self._note(add)
        return ids

    def _add_alone(self, agent: str, rows: AgentRows, times: Array, num_steps: int | None) -> Array:
        """Stores the rows of an agent that has a policy of its own, in all environments."""
        leaves = [*rows.leaves, times]
        if self._batch_size > 1:
            stream = self._as_fields[agent]
            leaves.append(stream if num_steps is None else np.repeat(stream[:, None], num_steps, axis=1))
        return self._writers[agent](leaves, num_steps, rows.ends, rows.priorities, None)

    def _note(self, add: AgentAdd) -> None:
        """What was stored is: moments are counted, and who may go on is known."""
        num_moments = 1 if add.num_steps is None else add.num_steps
        if add.is_everywhere and add.rows:
            self._times += num_moments
            self._open.update(dict.fromkeys(add.rows, self._all))
        else:
            self._times[add.is_present(self._batch_size)] += num_moments
            for agent, each in add.rows.items():
                self._open[agent] = self._open[agent].copy()
                self._open[agent][each.environments] = True
        for agent, environments in add.ended.items():
            self._end(agent, self._streams[agent][environments])
        if add.ends is not None and add.num_steps is None:
            self._end_absent(add, add.ends)

    def end_stream(self, environment: int | None, agent: str | None) -> None:
        """The streams of an environment (None: of all) end; of one agent only, where it is named."""
        with self.lock:
            chosen = slice(None) if environment is None else slice(environment, environment + 1)
            for name in self._known.agents if agent is None else (agent,):
                self._end(name, self._streams[name][chosen])

    def clear(self) -> None:
        """All buffers are empty, and moments are counted on."""
        with self.lock:
            for buffer in self._buffers.values():
                buffer.clear()
            self.forget_lives()

    def forget_lives(self) -> None:
        """Nobody's newest frame is followed by another; the lock is held."""
        self._open = {agent: np.zeros(self._batch_size, bool) for agent in self._open}

    def held(self) -> dict[str, Array]:
        """What decides how it goes on, by name, agents in alphabetical order; the lock is held."""
        return {"times": self._times.copy(), "open": np.stack([self._open[agent] for agent in self._known.agents])}

    def loose_flags(self) -> dict[str, str | None]:
        """None: the buffers of the policies look for ends themselves."""
        return {}

    def take_over(self, held: Mapping[str, Array], loose_flags: Mapping[str, str | None]) -> None:
        """Goes on where another was, these being what it had; `held` is kept. The lock is held."""
        del loose_flags  # there are none
        self._times = held["times"]
        self._open = dict(zip(self._known.agents, held["open"], strict=True))

    def unpack(
        self,
        policy: str,
        items: Items,
        info: BufferInfo,
        drawn: int,
        *,
        is_all_real: bool = False,
        sample_batch_size: int | None = None,
    ) -> tuple[Items, AgentInfo]:
        """A sample of a policy's buffer as its user sees it; eager tensors, or in a graph.

        Args:
          policy: whose it is.
          items: `AgentFrame`, leaves `[B, T, ...]`.
          info: of the sample.
          drawn: index of the drawn frame.
          is_all_real: nothing in these windows is padding.
          sample_batch_size: `B` that was asked for.
        """
        numbers = self._numbers[policy]
        if len(numbers) == 1:
            agents = self._only_agent(policy, info.keys, sample_batch_size)
        else:
            stream = items.stream if items.stream.shape.rank == info.keys.shape.rank else items.stream[..., drawn]
            if tf.is_symbolic_tensor(stream):
                agents = tf.gather(numbers, stream % len(numbers))
            else:
                agents = copy_to_tensor(numbers[stream.numpy() % len(numbers)])
        times = items.time if is_all_real else tf.where(info.mask, items.time, tf.constant(-1, tf.int64))
        return items.frame, AgentInfo.of(info, times, agents)

    def gather_all(self) -> dict[str, Nest]:
        """By agent every frame held of it, oldest first, ragged leaves `[B, T, ...]`."""
        found: dict[str, Nest] = {}
        for policy, buffer in self._buffers.items():
            agents = self._known.agents_of(policy)
            frames = frames_of_streams(all_frames(buffer), [self._as_fields[agent] for agent in agents])
            found.update(zip(agents, frames, strict=True))
        return {agent: found[agent] for agent in self._known.agents}

    def _only_agent(self, policy: str, keys: tf.Tensor, sample_batch_size: int | None) -> tf.Tensor:
        """The number of the only agent of a policy, int32, the shape of `keys`; eager it is made once for a size.

        (To ask a fresh eager tensor for its shape takes longer than all of this.)
        """
        number = self._numbers[policy][0]
        if tf.is_symbolic_tensor(keys):
            return tf.fill(tf.shape(keys) if None in keys.shape.as_list() else keys.shape, number)
        known = self._constant.get(policy)
        if known is None or known[0] != sample_batch_size:
            known = self._constant[policy] = (sample_batch_size, tf.fill(keys.shape, number))
        return known[1]

    def _add_of(
        self, policy: str, rows: Mapping[str, AgentRows], times: Array, num_steps: int | None
    ) -> dict[str, Array]:
        """Stores the rows of a policy's agents; `times` `[B]` (`[B, T]`) are those of the moments."""
        parts = list(rows.values())
        streams = _joined([self._streams[agent][each.environments] for agent, each in rows.items()])
        leaves = [_joined(leaf) for leaf in zip(*(each.leaves for each in parts), strict=True)]
        leaves.append(_joined([times[each.environments] for each in parts]))
        num_streams = self._buffers[policy].batch_size
        if num_streams > 1:
            fields = _joined([self._as_fields[agent][each.environments] for agent, each in rows.items()])
            leaves.append(fields if num_steps is None else np.repeat(fields[:, None], num_steps, axis=1))
        given = self._writers[next(iter(rows))](
            leaves,
            num_steps,
            _joined_ends([each.ends for each in parts], [len(each.environments) for each in parts]),
            None if parts[0].priorities is None else _joined([each.priorities for each in parts]),
            None if len(streams) == num_streams else streams,
        )
        out, done = {}, 0
        for agent, each in rows.items():
            mine = given[done : done + len(each.environments)]
            done += len(mine)
            if len(mine) == self._batch_size:
                out[agent] = mine
            else:
                out[agent] = np.full((self._batch_size, *mine.shape[1:]), NO_ID)
                out[agent][each.environments] = mine
        return out

    def _check_together(self, add: AgentAdd) -> None:
        """Refuses a moment that does not bring all streams of a policy's buffer.

        Raises:
          ValueError: an agent is absent; the message names it.
        """
        for policy in self._known.policies:
            agents = self._known.agents_of(policy)
            there = [agent for agent in agents if agent in add.rows]
            for agent in agents if there else ():
                if agent not in add.rows or len(add.rows[agent].environments) < self._batch_size:
                    raise ValueError(
                        f"agent {agent!r} is absent, and this buffer was built with streams='together': each add "
                        f"brings all agents of policy {policy!r} in every environment; build it with streams='apart'."
                    )

    def _end_absent(self, add: AgentAdd, ended: Array) -> None:
        """Environments ended, bool `[B]`, in which some agents had no frame."""
        for agent, is_open in self._open.items():
            absent = ended & is_open
            if agent in add.rows:
                absent[add.rows[agent].environments] = False
            if absent.any():
                self._end(agent, self._streams[agent][absent])
            self._open[agent] = is_open & ~ended

    def _end(self, agent: str, streams: Array) -> None:
        buffer = self._buffers[self._known.policy_of(agent)]
        for stream in streams.tolist():
            buffer.end_stream(stream)


def _joined(parts: Sequence[Any]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _joined_ends(ends: Sequence[Array | None], nums: Sequence[int]) -> Array | None:
    """Flags of all rows, where some agents may have none; `nums` rows each."""
    given = [each for each in ends if each is not None]
    if not given:
        return None
    inner = given[0].shape[1:]
    return _joined(
        [np.zeros((num, *inner), bool) if each is None else each for each, num in zip(ends, nums, strict=True)]
    )
