"""Many agents, one buffer: each policy learns from its own frames, or all in lockstep from the same moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from .adds import check_streams
from .agent_buffers import MakeBuffer
from .agent_draws import AgentDraws
from .agent_input import AgentAdd, AgentChecker
from .agent_parts import make_parts
from .agent_policies import AgentPolicies
from .base import Ids, Items, ReplayBuffer
from .callbacks import call_weakly
from .counts import check_count
from .multi_agent_state import MultiAgentState
from .nests import Array, Nest
from .priorities import check_keys, check_priorities, errors_of_rows
from .reverb_agents import ReverbAgentTables
from .saved_agents import SavedAgents
from .served_agents import ServedAgents
from .stats import BufferStats, total_stats

Mode = Literal["independent", "lockstep"]


class MultiAgentReplayBuffer(AgentDraws, SavedAgents, ReplayBuffer):
    """Stores what many agents do, and gives each policy its own frames, or all policies the same moments.

    An *agent* is named by a str, as in PettingZoo; a *policy* learns from one agent or several. A *moment* is one step
    of an environment, and `add_batch` stores one moment of `B` environments side by side. Agents that are not in it
    are absent: they have died, are not born yet, or it is not their turn. Where nobody is present there is no moment.

    `mode="independent"`: each policy has a buffer of its own, in which each of its agents in each environment is a
    stream. Agents may act at different times: windows are of an agent's own consecutive frames, and `info.times` tells
    the moment of each frame, `info.agents` whose it is. Without `policy=` samples and infos are dicts by policy.

    `mode="lockstep"`: one buffer, of which one draw is the same moments for all agents, `({agent: items}, info)`.
    `info.mask` is a dict by agent, False where it was absent, and on padding. A window shows one life of each agent,
    that of its first frame from the drawn one on, the dying frame included; what stands in masked rows (zeros, or
    another life) is not data. `replayfeed.pipelines.of_agent` gives one agent's view, on which all transforms work. An
    environment's episode ends when it is told to, or when all agents that lived in it have died.

    `capacity` is that of the buffers together, in the unit of those: with `BufferConfig("uniform", 1000)` each policy
    keeps the newest 1,000 frames (lockstep: moments), the same number of each stream. `capacity_of(policy)` is exact.

    `save` keeps all buffers as of one moment of all agents, and `restore` takes over all or none. Agents and policies
    are known by their names, in whatever order they are given. Settings are named after the policy whose buffer has
    them (`wolf.max_length`; in lockstep `moments.max_length`). Tables are saved by their server; in a
    `tf.train.Checkpoint` is which checkpoint of it the rest goes with.

    Args:
      data_specs: by agent the nest of `tf.TensorSpec` of its frames; they may differ between policies.
      policy_of: by agent its policy: a dict, or a function of the agent.
      make_buffer: a `BufferConfig`; or a function that is called with `data_spec=` and `batch_size=` and makes a
        buffer of the package, such as `functools.partial(TFPrioritizedReplayBuffer, max_length=1000)`; or a
        `TableConfig` for a table on a Reverb server of its own, whose `data_spec` is replaced by what is stored.
        Independent: or a dict of these by policy. Or `ReverbAgentTables`, on any server, with tables for the policies,
        for all together, or both: two buffers may read one of them, in one mode each. Functions that are given to
        buffers (`end_of_episode_fn`, `eligible_fn`) get what is stored, an `AgentFrame` with the agent's items in
        `.frame`, or a `JointFrame` with those by agent in `.frames`.
      mode: `'independent'` or `'lockstep'`.
      batch_size: `B`, environments that are written side by side.
      shards: this buffer is one of so many, in as many processes, that divide the capacity between them: each holds
        `1 / shards` of it, rounded down. For a `BufferConfig` or a `TableConfig`; a function divides for itself.
      streams: `'apart'`: agents may be absent. `'together'`: each add brings all streams of each buffer in this process
        (independent: every agent in every environment; in lockstep some agent in every environment), which is
        quicker where there are several; other adds are refused.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      end_of_episode_fn: an agent's items `-> bool [B]` for specs that do not tell ends, in lockstep.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: `mode` is none of the two; a count is below 1; agents of one policy have different specs.
      ValueError: `make_buffer` by policy in lockstep, or a setting that lockstep cannot have; the message says why.
      TypeError, ValueError: as the buffers' constructors.

    >>> import numpy as np
    >>> from replayfeed.buffers import BufferConfig
    >>> spec = {"obs": tf.TensorSpec([], tf.float32)}
    >>> frames = lambda number: {"obs": np.full([1], number, np.float32)}
    >>> specs = {"wolf": spec, "sheep": spec}
    >>> buffer = MultiAgentReplayBuffer(specs, lambda agent: agent, BufferConfig("uniform", 100))
    >>> _ = buffer.add_batch({"wolf": frames(1), "sheep": frames(2)})
    >>> _ = buffer.add_batch({"wolf": frames(3)})  # the sheep is dead
    >>> items, info = buffer.sample(1, num_steps=2, policy="wolf")
    >>> items["obs"].numpy(), info.times.numpy()
    (array([[1., 3.]], dtype=float32), array([[0, 1]]))
    >>> buffer.capacity_of("sheep"), buffer.stats("sheep").frames
    (100, 1)
    """

    def __init__(
        self,
        data_specs: Mapping[str, Nest],
        policy_of: Mapping[str, str] | Callable[[str], str],
        make_buffer: MakeBuffer | Mapping[str, MakeBuffer] | ReverbAgentTables,
        *,
        mode: Mode = "independent",
        batch_size: int = 1,
        shards: int = 1,
        streams: Literal["apart", "together"] = "apart",
        cast: bool = False,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
    ) -> None:
        self._remember(locals())
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be 'independent' or 'lockstep', got {mode!r}.")
        check_count("batch_size", batch_size)
        if streams not in ("apart", "together"):
            raise ValueError(f"streams must be 'apart' or 'together', got {streams!r}.")
        if mode == "lockstep" and isinstance(make_buffer, Mapping):
            raise ValueError("make_buffer by policy in lockstep: there is one buffer for all; give one.")
        if mode == "independent" and end_of_episode_fn is not None:
            raise ValueError(
                "end_of_episode_fn: independent policies have buffers of their own; give it to make_buffer."
            )
        self._mode = mode
        self._batch_size = int(batch_size)
        self._closed = False
        parts = make_parts(
            AgentPolicies(data_specs, policy_of),
            make_buffer,
            self._batch_size,
            is_lockstep=mode == "lockstep",
            shards=shards,
            together=streams == "together",
            cast=cast,
            end_of_episode_fn=end_of_episode_fn,
        )
        self._known = parts.known
        self._checker = AgentChecker(self._known, self._batch_size, cast=cast)
        self._buffers, self._writer, self._resources = parts.buffers, parts.writer, parts.owned
        self._independent, self._lockstep = parts.independent, parts.lockstep
        saved = parts.writer._tables if isinstance(parts.writer, ServedAgents) else parts.lockstep or parts.independent
        assert saved is not None  # one of them writes, where the tables do not
        self._state = MultiAgentState(self._known, self._buffers, saved, is_lockstep=mode == "lockstep")

    # What there is

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents, in the order of `data_specs`."""
        return self._known.given

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, in the order of their first agents."""
        return self._known.policies

    @property
    def mode(self) -> Mode:
        """`'independent'` or `'lockstep'`."""
        return self._mode

    @property
    def data_spec(self) -> Nest:
        """By agent the nest of `tf.TensorSpec` that the constructor was given, in the order of `JointFrame.codes`."""
        return self._known.data_specs

    @property
    def batch_size(self) -> int:
        """`B`, environments that are written side by side."""
        return self._batch_size

    @property
    def capacity(self) -> int:
        """How much all buffers hold together when full, in `capacity_unit`."""
        return sum(buffer.capacity for buffer in self._buffers.values())

    @property
    def capacity_unit(self) -> Literal["frames", "episodes", "items"]:
        """What `capacity` counts; frames of one agent, in lockstep of all agents in one moment."""
        return next(iter(self._buffers.values())).capacity_unit

    def policy_of(self, agent: str) -> str:
        """The policy that learns from this agent.

        Raises:
          ValueError: there is no such agent.
        """
        return self._known.policy_of(agent)

    def agents_of(self, policy: str) -> tuple[str, ...]:
        """The agents of a policy, in this process in alphabetical order.

        Raises:
          ValueError: there is no such policy.
        """
        return self._known.agents_of(policy)

    def capacity_of(self, policy: str) -> int:
        """How much of a policy's frames is held when full, in `capacity_unit`; in lockstep moments, of all agents.

        Raises:
          ValueError: there is no such policy.
        """
        self._known.check_policies("policy", (policy,))
        return self._buffers["" if self._lockstep is not None else policy].capacity

    def buffer_of(self, policy: str | None = None) -> ReplayBuffer:
        """The buffer of a policy, which stores `AgentFrame`s; in lockstep the one of all, which stores `JointFrame`s.

        For what is its own: `delete`, `episodes`, `ready`. Add through this class only. After
        `restore(on_mismatch='keep')` there are other ones, and these are closed.

        Raises:
          ValueError: there is no such policy; in lockstep, a policy is named.
        """
        return self._buffers[self._key(policy, needed=True)]

    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self._buffers.values())

    def num_frames(self) -> tf.Tensor:
        """Frames held now in all buffers, in lockstep moments, int64 `[]`."""
        return tf.add_n([buffer.num_frames() for buffer in self._buffers.values()])

    # Writing

    def add_batch(
        self,
        items: Items,
        *,
        end_of_episode: Any = None,
        priorities: Any = None,
        streams: Any = None,
        present: Any = None,
    ) -> Ids:
        """Stores one moment of each environment.

        Args:
          items: by agent a nest matching its spec, leaves `[B, ...]`. Agents that are left out are absent.
          end_of_episode: bool `[B]`, environments whose episode ends for all of their agents; or by agent bool `[B]`,
            whose life ends. For ends that the items do not tell.
          priorities: by agent `[B]`, raw; of all agents of a policy that are present, or of none. In lockstep `[B]`.
          streams: None: environments are left out by `present`.
          present: by agent bool `[B]`, the environments in which it is present; what stands in its other rows is not
            looked at. Agents that are left out are present in all.

        Returns:
          By agent the ids int64 `[B]`, -1 where it is absent; in lockstep `[B]`, -1 where no agent was present.

        Raises:
          ValueError: the items of an agent do not match its spec; the message names agent and field. Nothing is
            stored.
          ValueError: another argument does not fit, or names an agent that there is not. Nothing is stored.
          ValueError: the buffer is closed.
          WaitTimeoutError: as served buffers; what was stored of the moment before stays.
        """
        if streams is not None:
            raise ValueError("streams: say which agents are there by present={agent: bool [B]}.")
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, present, sequence=False)
        self._check_open()
        if self._lockstep is not None:
            given = self._joint_priorities(priorities, (self._batch_size,))
            add = self._checker.moment(items, end_of_episode, None, present)
            return _like(add, self._writer.add(add, given))
        add = self._checker.moment(items, end_of_episode, priorities, present)
        return self._by_agent(items, add, self._writer.add(add, None))

    def add_sequence(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores `T` moments of each environment, in which the agents that are named are present: as `T` calls.

        Args:
          items: by agent, leaves `[B, T, ...]`.
          end_of_episode: bool `[B, T]`; or by agent.
          priorities: by agent `[B, T]`; in lockstep `[B, T]`.
          streams: int `[n]`, ascending and each once, environments whose moments these are, `n` for `B` in all else;
            in the others nothing happens. None: all.

        Returns:
          As `add_batch`, `[B, T]`.

        Raises:
          ValueError: as `add_batch`; also where agents disagree about `T`, or `streams` are no environments.
        """
        if not tf.executing_eagerly():
            return self._add_in_graph(items, end_of_episode, priorities, streams, sequence=True)
        self._check_open()
        chosen = None if streams is None else check_streams(streams, self._batch_size)
        add = self._checker.sequence(items, end_of_episode, None if self._lockstep else priorities, chosen)
        if self._lockstep is not None:
            num_rows = self._batch_size if chosen is None else len(chosen)
            given = self._joint_priorities(priorities, (num_rows, add.num_steps or 0))
            if chosen is None:
                return _like(add, self._writer.add(add, given))
            return _like(add, self._writer.add(add, _in_rows(given, chosen, self._batch_size))[chosen])
        ids = self._by_agent(items, add, self._writer.add(add, None))
        return ids if chosen is None else {agent: _rows_of(each, chosen) for agent, each in ids.items()}

    def let_streams_part(self) -> None:
        """Nothing to do: agents come and go anyhow."""

    def end_stream(self, b: int | None = None, *, agent: str | None = None) -> None:
        """The episode of environment `b` (None: of all) stops here, or only the life of one agent in it.

        Raises:
          ValueError: there is no such environment, or no such agent.
        """
        if b is not None and not 0 <= b < self._batch_size:
            raise ValueError(f"there is no environment {b}: this buffer has 0 to {self._batch_size - 1}.")
        if agent is not None:
            self._known.check_agents("agent", (agent,))
        self._check_open()
        self._writer.end_stream(b, agent)

    # Reading

    def get(self, ids: Ids, num_steps: int | None = None, *, policy: str | None = None) -> Items:
        """The frames with these ids, or the windows that start at them.

        Args:
          ids: int64, of any shape; independent without `policy`: by policy.
          num_steps: as in the buffers.
          policy: whose frames they are.

        Returns:
          The items; by policy where ids are. In lockstep by agent, zeros where one was absent.

        Raises:
          ValueError: as the buffers.
        """
        if self._lockstep is not None:
            return self._buffers[self._key(policy)].get(ids, num_steps).frames
        if policy is not None:
            return self._buffers[self._key(policy)].get(ids, num_steps).frame
        by_policy = self._by_policy("ids", ids)
        return {name: self._buffers[name].get(each, num_steps).frame for name, each in by_policy.items()}

    def gather_all(self) -> Items:
        """By agent every frame held of it, oldest first: `tf.RaggedTensor`s `[B, T, ...]`, each row of its own `T`.

        In lockstep rows are those of the buffer's own `gather_all`: of whole episodes there is one, of tables one for
        each stream that wrote.
        """
        if self._lockstep is not None:
            return self._lockstep.gather_all()
        assert self._independent is not None  # the other mode
        return self._independent.gather_all()

    def update_priorities(
        self, keys: Any, priorities: Any = None, *, td_errors: Any = None, policy: str | None = None
    ) -> Any:
        """Sets priorities: of one policy, of several, or in lockstep of windows of moments.

        Args:
          keys: `[n]`, with `policy` or in lockstep; else `{policy: (keys, td_errors)}`.
          priorities: as in the buffers.
          td_errors: as in the buffers.
          policy: whose keys they are.

        Returns:
          As the buffers how many keys were gone; of several policies by policy.

        Raises:
          ValueError: there is no such policy, or something does not fit; nothing is changed.
        """
        if self._lockstep is not None or policy is not None:
            buffer = self._buffers[self._key(policy)]
            return buffer.update_priorities(keys, priorities, td_errors=td_errors)
        if priorities is not None or td_errors is not None:
            raise ValueError("give {policy: (keys, td_errors)}, or keys with policy=...")
        by_policy = self._by_policy("keys", keys)
        for name, pair in by_policy.items():
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise ValueError(f"keys: expected (keys, td_errors) for policy {name!r}, got {type(pair).__name__}.")
            if tf.executing_eagerly():
                check_pair(name, *pair)
        return {
            name: self._buffers[name].update_priorities(pair[0], td_errors=pair[1]) for name, pair in by_policy.items()
        }

    def update_priorities_from(
        self, info: Any, td_errors: Any, *, eta: float = 0.9, burn_in: int = 0, policy: str | None = None
    ) -> Any:
        """`update_priorities` of a batch as it came, heeding its masks.

        Args:
          info: by policy, of the policy named, or in lockstep.
          td_errors: `[B]` or `[B, T]`; by policy where `info` is. In lockstep by agent: a window's priority is the mean
            of those of its agents that have a frame in it, each by its own mask.
          eta: as in the buffers.
          burn_in: as in the buffers.
          policy: whose sample it is; None: `info` and `td_errors` are by policy.

        Raises:
          ValueError: as the buffers; nothing is changed.
        """
        if self._lockstep is not None:
            errors = self._lockstep.errors_of_rows(info, td_errors, eta, burn_in)
            return self._buffers[""].update_priorities(info.keys, td_errors=errors)
        if policy is not None:
            gone = self.update_priorities_from({policy: info}, {policy: td_errors}, eta=eta, burn_in=burn_in)
            return gone[policy]
        by_policy = self._by_policy("info", info)
        self._known.check_policies("td_errors", td_errors)
        pairs = {}
        for name in td_errors:
            if name not in by_policy:
                raise ValueError(f"td_errors: policy {name!r} is not in info.")
            try:
                errors = errors_of_rows(td_errors[name], by_policy[name].mask, eta, burn_in)
            except ValueError as error:
                raise ValueError(f"policy {name!r}: {error}") from error
            pairs[name] = (by_policy[name].keys, errors)
        return self.update_priorities(pairs)

    def clear(self) -> None:
        """Empties all buffers and their counters; of `ReverbAgentTables` all tables, those of the other mode too."""
        self._check_open()
        self._writer.clear()

    def stats(self, policy: str | None = None) -> BufferStats:
        """Counts, shares and bytes as of now: of a policy, or of all together.

        Raises:
          ValueError: there is no such policy, or in lockstep one is named.
        """
        if policy is not None or self._lockstep is not None:
            return self._buffers[self._key(policy)].stats()
        return total_stats([buffer.stats() for buffer in self._buffers.values()])

    def flush(self) -> None:
        """Returns when all that was added can be read."""
        for buffer in self._buffers.values():
            buffer.flush()

    def close(self) -> None:
        """Closes all buffers, and the server that was made for them. The buffer cannot be used afterwards.

        `ReverbAgentTables` that were given stay open.
        """
        self._closed = True
        for resource in self._resources:
            resource.close()

    # How it is done

    def _key(self, policy: str | None, *, needed: bool = False) -> str:
        """Which of the buffers is meant."""
        if self._lockstep is not None:
            if policy is not None:
                raise ValueError(
                    f"policy={policy!r} in lockstep: a draw is of all agents; take {policy!r}'s part of the items."
                )
            return ""
        if policy is None:
            raise ValueError(f"policy: name one of {', '.join(map(repr, self.policies))}.")
        self._known.check_policies("policy", (policy,))
        return policy

    def _by_policy(self, name: str, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} must be a dict by policy where no policy is named, got {type(value).__name__}.")
        self._known.check_policies(name, value)
        return value

    def _joint_priorities(self, priorities: Any, shape: tuple[int, ...]) -> Array | None:
        if isinstance(priorities, Mapping):
            raise ValueError("priorities by agent in lockstep: a moment has one, of all agents; give [B].")
        return None if priorities is None else check_priorities(priorities, None, shape)

    def _by_agent(self, items: Mapping[str, Any], add: AgentAdd, ids: dict[str, Array]) -> dict[str, Ids]:
        if len(ids) < len(items):
            none = np.full(self._batch_size if add.num_steps is None else (self._batch_size, add.num_steps), -1)
            ids = {agent: ids.get(agent, none) for agent in items}
        return {agent: tf.constant(each) for agent, each in ids.items()} if add.as_tensors else ids

    @tf.autograph.experimental.do_not_convert
    def _add_in_graph(self, items: Items, end_of_episode: Any, priorities: Any, where: Any, *, sequence: bool) -> Any:
        """`where` is `streams` of a sequence, `present` of a moment."""
        num_rows: int | None = self._batch_size
        if sequence and where is not None:
            where = tf.convert_to_tensor(where)
            num_rows = where.shape[0] if where.shape.rank == 1 else None
        self._checker.trace(items, sequence=sequence, num_rows=num_rows)
        structure = (items, end_of_episode, priorities, where)
        # None stands for itself in a nest.
        given = [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]
        places = [leaf is not None for leaf in tf.nest.flatten(structure)]
        agents = () if self._lockstep is not None else tuple(items)

        def write(buffer: MultiAgentReplayBuffer, *arrays: Array) -> Array:
            left = iter(arrays)
            leaves = [next(left) if is_there else None for is_there in places]
            items, ends, priorities, where = tf.nest.pack_sequence_as(structure, leaves)
            if sequence:
                ids = buffer.add_sequence(items, end_of_episode=ends, priorities=priorities, streams=where)
            else:
                ids = buffer.add_batch(items, end_of_episode=ends, priorities=priorities, present=where)
            return np.stack([ids[agent] for agent in agents]) if agents else np.asarray(ids)

        ids = call_weakly(self, write, [tf.convert_to_tensor(leaf) for leaf in given], tf.int64)
        inner = [num_rows, None] if sequence else [self._batch_size]
        ids.set_shape([len(agents), *inner] if agents else inner)
        return dict(zip(agents, tf.unstack(ids), strict=True)) if agents else ids

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"this {type(self).__name__} is closed; build a new one.")


def _like(add: AgentAdd, ids: Array) -> Ids:
    """Ids as a tensor where the items are tensors."""
    return tf.constant(ids) if add.as_tensors else ids


def _in_rows(priorities: Array | None, environments: Array, batch_size: int) -> Array | None:
    """`[B, T]` of priorities `[n, T]` of some environments."""
    if priorities is None:
        return None
    everywhere: Array = np.zeros((batch_size, *priorities.shape[1:]))
    everywhere[environments] = priorities
    return everywhere


def _rows_of(ids: Ids, environments: Array) -> Ids:
    return tf.gather(ids, environments) if isinstance(ids, tf.Tensor) else ids[environments]


def check_pair(policy: str, keys: Any, td_errors: Any) -> None:
    """Refuses keys and TD errors that do not fit each other, before anything is changed.

    Raises:
      ValueError: the message names the policy.
    """
    try:
        checked = check_keys(keys)
        check_priorities(None, td_errors, checked.shape)
    except ValueError as error:
        raise ValueError(f"policy {policy!r}: {error}") from error
