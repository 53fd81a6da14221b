"""A `MultiAgentReplayBuffer` as settings: which go together, and how they stand in a dict or in YAML."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from .buffer_config import BufferConfig
from .counts import check_count
from .multi_agent import Mode, MultiAgentReplayBuffer
from .nests import Nest
from .plain_settings import check_known, nearest, settings_of
from .rllib_keys import NOT_THE_BUFFERS, is_rllib
from .rllib_settings import from_rllib
from .table_text import from_yaml, to_yaml
from .windows import Window

InitialState = Literal["stored", "zero"]


@dataclasses.dataclass(frozen=True)
class MultiAgentConfig:
    """What a `MultiAgentReplayBuffer` is built with, and the windows that are drawn from it.

    Settings that contradict each other are refused here, before there is an environment. What `build` does not need
    (`window`, `policy_windows`, `initial_state`) is for the calls that draw:
    `buffer.as_dataset(64, window=config.window)`, then `recurrent_state(fields, config.initial_state)`.

    Args:
      buffer: of each policy; in lockstep of all agents together, where `capacity` counts moments.
      mode: `'independent'`: each policy draws from its own frames. `'lockstep'`: one draw is the same moments of all.
      shards: this buffer is one of so many that divide the capacity between them.
      policy_buffers: other settings for some policies, by their names; independent only.
      window: what is drawn; None: single frames, of kind `'episodic'` whole episodes.
      policy_windows: other windows for some policies; independent only.
      initial_state: with which state a recurrent network starts on a window, `'stored'` or `'zero'`. `'stored'` when
        not said and windows are drawn.
      cast: convert input within its kind (float64 to float32) instead of refusing it.

    Raises:
      TypeError: a part is of the wrong type; the message says which, and what belongs there.
      ValueError: `mode` or `initial_state` is none of its two words, or `shards` is below 1.
      ValueError: a capacity divided among the shards leaves nothing.
      ValueError: `policy_buffers` or `policy_windows` in lockstep.
      ValueError: a window that its buffer can never give: of several frames with `'reservoir'`; with
        `boundaries='ignore'` of `'episodic'`; of more frames than are held.
      ValueError: `initial_state` where no window is drawn.

    >>> config = MultiAgentConfig(BufferConfig("uniform", 10_000), shards=4, window=Window(20, burn_in=5))
    >>> config.buffer_of("walker").divided(config.shards).capacity, config.initial_state
    (2500, 'stored')
    >>> MultiAgentConfig(BufferConfig("reservoir", 10_000), window=Window(20))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: MultiAgentConfig: Window(num_steps=20) with kind='reservoir': it keeps single frames, ...
    """

    buffer: BufferConfig
    _: dataclasses.KW_ONLY
    mode: Mode = "independent"
    shards: int = 1
    policy_buffers: Mapping[str, BufferConfig] = dataclasses.field(default_factory=dict, hash=False)
    window: Window | None = None
    policy_windows: Mapping[str, Window] = dataclasses.field(default_factory=dict, hash=False)
    initial_state: InitialState | None = None
    cast: bool = False

    def __post_init__(self) -> None:
        _check_is("buffer", self.buffer, BufferConfig)
        if self.mode not in get_args(Mode):
            raise ValueError(f"MultiAgentConfig.mode must be 'independent' or 'lockstep', got {self.mode!r}.")
        check_count("MultiAgentConfig.shards", self.shards)
        object.__setattr__(self, "shards", int(self.shards))
        if self.window is not None:
            _check_is("window", self.window, Window)
        for name, kind in (("policy_buffers", BufferConfig), ("policy_windows", Window)):
            given = getattr(self, name)
            if not isinstance(given, Mapping):
                raise TypeError(f"MultiAgentConfig.{name} must be a mapping from policies, got {given!r}.")
            for policy, value in given.items():
                _check_is(f"{name}[{policy!r}]", value, kind)
                if not isinstance(policy, str):
                    raise TypeError(f"MultiAgentConfig.{name}: a policy is a str, got {policy!r}.")
            if given and self.mode == "lockstep":
                raise ValueError(
                    f"MultiAgentConfig.{name} names {', '.join(map(repr, given))} with mode='lockstep', where one draw "
                    "of one buffer is the same moments of all agents; leave it out, or take mode='independent'."
                )
            # A copy that nobody can change.
            object.__setattr__(self, name, types.MappingProxyType(dict(given)))
        if not isinstance(self.cast, bool):
            raise TypeError(f"MultiAgentConfig.cast must be True or False, got {self.cast!r}.")
        self._check_initial_state()
        for policy in (None, *self.policy_buffers, *self.policy_windows):
            where = "MultiAgentConfig" if policy is None else f"MultiAgentConfig, policy {policy!r}"
            buffer = self.buffer if policy is None else self.buffer_of(policy)
            window = self.window if policy is None else self.window_of(policy)
            try:
                shard = buffer.divided(self.shards)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from error
            if window is not None:
                _check_window(where, window, shard, self.shards)

    def buffer_of(self, policy: str) -> BufferConfig:
        """The settings of this policy's buffer, with the whole capacity.

        >>> MultiAgentConfig(BufferConfig("uniform", 10)).buffer_of("walker").capacity
        10
        """
        return self.policy_buffers.get(policy, self.buffer)

    def window_of(self, policy: str) -> Window | None:
        """What this policy draws; None: as `window`.

        >>> MultiAgentConfig(BufferConfig("uniform", 10), policy_windows={"walker": Window(2)}).window_of("walker")
        Window(num_steps=2)
        """
        return self.policy_windows.get(policy, self.window)

    def build(
        self,
        data_specs: Mapping[str, Nest],
        policy_of: Mapping[str, str] | Callable[[str], str],
        batch_size: int = 1,
    ) -> MultiAgentReplayBuffer:
        """The buffer of these agents.

        With a `seed` each policy that has no settings of its own gets another one, made of it and its place among the
        policies' sorted names.

        Args:
          data_specs: by agent, the nest of `tf.TensorSpec` of one of its frames.
          policy_of: by which policy each agent acts.
          batch_size: `B`, environments side by side.

        Raises:
          ValueError: settings of a policy that no agent acts by.
          TypeError, ValueError: as `MultiAgentReplayBuffer`.
        """
        if isinstance(policy_of, Mapping):
            # An agent that is not in it is the buffer's to refuse.
            policies = sorted({policy_of[agent] for agent in data_specs if agent in policy_of})
        else:
            policies = sorted({policy_of(agent) for agent in data_specs})
        for name in ("policy_buffers", "policy_windows"):
            unknown = [policy for policy in getattr(self, name) if policy not in policies]
            if unknown:
                told = "; ".join(f"{policy!r}{nearest(policy, policies)}" for policy in unknown)
                raise ValueError(
                    f"MultiAgentConfig.{name}: no agent acts by {told}; policies are {', '.join(map(repr, policies))}."
                )
        make_buffer: BufferConfig | dict[str, BufferConfig] = self.buffer
        if self.mode == "independent":
            make_buffer = {
                policy: self.policy_buffers[policy] if policy in self.policy_buffers else self.buffer.seeded(index)
                for index, policy in enumerate(policies)
            }
        return MultiAgentReplayBuffer(
            data_specs,
            policy_of,
            make_buffer,
            mode=self.mode,
            batch_size=batch_size,
            shards=self.shards,
            cast=self.cast,
        )

    def to_dict(self) -> dict[str, Any]:
        """Every setting by its name, as values that JSON and YAML can hold.

        >>> MultiAgentConfig(BufferConfig("uniform", 10), window=Window(2)).to_dict()["window"]["num_steps"]
        2
        """
        return {
            "mode": self.mode,
            "shards": self.shards,
            "buffer": self.buffer.to_dict(),
            "policy_buffers": {policy: buffer.to_dict() for policy, buffer in self.policy_buffers.items()},
            "window": None if self.window is None else dataclasses.asdict(self.window),
            "policy_windows": {policy: dataclasses.asdict(window) for policy, window in self.policy_windows.items()},
            "initial_state": self.initial_state,
            "cast": self.cast,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> MultiAgentConfig:
        """The settings that `to_dict` has told of; what has a default may be left out.

        Raises:
          TypeError, ValueError: unknown or missing settings, all named; or as the constructor.

        >>> MultiAgentConfig.from_dict({"buffer": {"kind": "uniform", "capacity": 10}}).mode
        'independent'
        """
        where = "a multi-agent config"
        names = [field.name for field in dataclasses.fields(cls)]
        given = dict(check_known(where, plain, names))
        if "buffer" not in given:
            raise ValueError(f"{where} lacks buffer, a mapping with at least kind and capacity.")
        given["buffer"] = BufferConfig.from_dict(given["buffer"])
        if given.get("window") is not None:
            given["window"] = settings_of(Window, "window", given["window"])
        for name, kind in (("policy_buffers", BufferConfig), ("policy_windows", Window)):
            by_policy = given.get(name, {})
            if not isinstance(by_policy, Mapping):
                raise TypeError(f"{name} must be a mapping from policies, got {by_policy!r}.")
            given[name] = {
                policy: settings_of(kind, f"{name}[{policy!r}]", settings) for policy, settings in by_policy.items()
            }
        return cls(**given)

    def to_yaml(self) -> str:
        """`to_dict` as YAML.

        Raises:
          ImportError: PyYAML is not installed.
        """
        return to_yaml(self.to_dict())

    @classmethod
    def from_yaml(cls, text: str) -> MultiAgentConfig:
        """The settings that YAML tells; nothing executable is read.

        Raises:
          ValueError: it is no YAML, asks for objects, or names a key twice.
          TypeError, ValueError: as `from_dict`.
          ImportError: PyYAML is not installed.
        """
        return cls.from_dict(from_yaml(text))

    def _check_initial_state(self) -> None:
        has_windows = self.window is not None or bool(self.policy_windows)
        if self.initial_state is None:
            if has_windows:
                object.__setattr__(self, "initial_state", "stored")
            return
        if self.initial_state not in get_args(InitialState):
            raise ValueError(f"MultiAgentConfig.initial_state must be 'stored' or 'zero', got {self.initial_state!r}.")
        if not has_windows:
            raise ValueError(
                f"MultiAgentConfig: initial_state={self.initial_state!r} without a window: with that state a network "
                "starts on one; give window, or leave it out."
            )


def validate_config(config: Mapping[str, Any] | str) -> MultiAgentConfig:
    """The checked settings that a dict or YAML tells, ours or RLlib's `replay_buffer_config`.

    RLlib's is known by its `type`. Every key of it is translated or refused with the reason and what to do instead;
    the README has a table of them.

    Args:
      config: a mapping, or YAML text (of which JSON is a part).

    Raises:
      TypeError: it is neither, or a part is of the wrong type.
      ValueError: settings are unknown, refused or contradict each other; all that are found are named.
      ImportError: it is text, and PyYAML is not installed.

    >>> validate_config({"buffer": {"kind": "uniform", "capacity": 1000}, "mode": "lockstep"}).mode
    'lockstep'
    >>> config = validate_config({"type": "MultiAgentPrioritizedReplayBuffer", "capacity": 50_000, "num_shards": 4})
    >>> config.buffer.kind, config.buffer.capacity, config.buffer.weight_norm, config.shards
    ('prioritized', 50000, 'buffer', 4)
    >>> validate_config({"type": "MultiAgentReplayBuffer", "capacty": 50_000})
    Traceback (most recent call last):
    ...
    ValueError: replay_buffer_config of MultiAgentReplayBuffer:
      capacty: unknown, and RLlib drops it without a word; the nearest is 'capacity'.
    """
    if isinstance(config, str):
        read = from_yaml(config)
        if not isinstance(read, Mapping):
            raise TypeError(f"validate_config takes a mapping or the text of one, not a path: this text is {read!r}.")
        config = read
    if not isinstance(config, Mapping):
        raise TypeError(f"validate_config takes a mapping or YAML text, got {config!r}.")
    if is_rllib(config):
        return MultiAgentConfig.from_dict(from_rllib(config))
    refused = [f"\n  {key}: {NOT_THE_BUFFERS[key]}" for key in config if key in NOT_THE_BUFFERS]
    if refused:
        raise ValueError(f"a multi-agent config has settings that are not the buffer's:{''.join(refused)}")
    return MultiAgentConfig.from_dict(config)


def _check_is(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"MultiAgentConfig.{name} must be a {kind.__name__}, got {value!r}.")


def _check_window(where: str, window: Window, shard: BufferConfig, shards: int) -> None:
    """Refuses a window that a buffer with these settings can never give."""
    if shard.kind == "reservoir" and (window.length > 1 or window.stride > 1):
        raise ValueError(
            f"{where}: {window!r} with kind='reservoir': it keeps single frames, most of which lose their neighbours; "
            "leave window out, or take another kind."
        )
    if shard.kind == "episodic" and window.boundaries == "ignore":
        raise ValueError(
            f"{where}: boundaries='ignore' with kind='episodic', which keeps episodes apart; take kind='uniform', or "
            "leave it out."
        )
    if shard.most_frames is not None and window.num_needed > shard.most_frames:
        raise ValueError(
            f"{where}: {window!r} needs {window.num_needed} frames of an episode, and {shard.most_frames} are held"
            f"{' by a shard' if shards > 1 else ''}; shorten the window, or raise capacity."
        )
