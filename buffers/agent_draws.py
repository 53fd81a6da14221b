"""How samples of many agents are drawn: of one policy, of several at once, or of all in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import tensorflow as tf

from .agent_buffers import looks_ahead
from .agent_policies import AgentPolicies
from .base import BufferInfo, EmptyBufferError, Items, ReplayBuffer, join_samples
from .counts import check_count
from .independent_agents import IndependentAgents
from .lockstep_agents import LockstepAgents
from .ring_dataset import repacked
from .windows import Window, resolve_window


class AgentDraws:
    """The part of `MultiAgentReplayBuffer` that draws from its buffers."""

    # Of `MultiAgentReplayBuffer`.
    _known: AgentPolicies
    _buffers: dict[str, ReplayBuffer]
    _independent: IndependentAgents | None
    _lockstep: LockstepAgents | None
    _key: Callable[[str | None], str]
    _check_open: Callable[[], None]

    def as_dataset(
        self,
        sample_batch_size: Any = None,
        num_steps: Any = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Callable[[Any], Any] | None = None,
        single_deterministic_pass: bool = False,
        *,
        window: Any = None,
        epochs: int | None = None,
        policy: str | None = None,
    ) -> tf.data.Dataset:
        """A dataset of `(items, info)`, as that of the buffers.

        Independent: with `policy` its items; without, `({policy: items}, {policy: info})`, for which
        `sample_batch_size`, `num_steps` and `window` may be dicts by policy. In lockstep `({agent: items}, info)`.

        Args:
          sample_batch_size: `B`, of each policy.
          num_steps: as in the buffers.
          num_parallel_calls: as in the buffers.
          sequence_preprocess_fn: of the items of one sample; in lockstep of the dict of them by agent.
          single_deterministic_pass: as in the buffers; of several policies it ends with the shortest.
          window: as in the buffers.
          epochs: as in the buffers.
          policy: whose frames; None: of all.

        Raises:
          ValueError: there is no such policy, or in lockstep one is named.
          Otherwise as the buffers.
        """
        if self._lockstep is None and policy is None:
            self._check_by_policy(sample_batch_size, num_steps, window)
            each = {
                name: self.as_dataset(
                    _of(sample_batch_size, name),
                    _of(num_steps, name),
                    num_parallel_calls,
                    sequence_preprocess_fn,
                    single_deterministic_pass,
                    window=_of(window, name),
                    epochs=epochs,
                    policy=name,
                )
                for name in self._known.policies
            }
            return repacked(tf.data.Dataset.zip(each), _taken_apart, look_ahead=False)
        self._check_open()
        key = self._key(policy)
        self._expect(num_steps, window)
        wrapped = None if sequence_preprocess_fn is None else _inside(sequence_preprocess_fn)
        dataset = self._buffers[key].as_dataset(
            sample_batch_size,
            num_steps,
            num_parallel_calls,
            wrapped,
            single_deterministic_pass,
            window=window,
            epochs=epochs,
        )
        unpack = tf.autograph.experimental.do_not_convert(
            lambda items, info: self._unpack(key, items, info, sample_batch_size, num_steps, window)
        )
        ahead = sample_batch_size is not None and looks_ahead(self._buffers[key])
        return repacked(dataset, unpack, look_ahead=ahead)

    def sample(
        self,
        sample_batch_size: Any = None,
        num_steps: Any = None,
        *,
        window: Any = None,
        policy: str | None = None,
    ) -> tuple[Items, Any]:
        """One draw at once, as eager tensors; arguments and what comes as in `as_dataset`.

        Raises:
          As `as_dataset`.
          EmptyBufferError: nothing is eligible, of a policy that the message names; it says why, with numbers.
        """
        if self._lockstep is None and policy is None:
            self._check_by_policy(sample_batch_size, num_steps, window)
            all_items, infos = {}, {}
            for name in self._known.policies:
                all_items[name], infos[name] = self._sample_of(
                    name, _of(sample_batch_size, name), _of(num_steps, name), _of(window, name)
                )
            return all_items, infos
        if self._lockstep is not None:
            self._expect(num_steps, window)
        return self._sample_of(self._key(policy), sample_batch_size, num_steps, window)

    def sample_at_least(
        self,
        min_steps: int,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
        policy: str | None = None,
        count: Literal["env", "agent"] = "agent",
    ) -> tuple[Items, Any]:
        """Draws samples until at least `min_steps` steps are there, and joins them into one batch.

        Args:
          min_steps: steps wanted.
          num_steps: as in `sample`.
          window: as in `sample`.
          policy: as in `sample`; without it the steps of all policies count together, each giving as many samples.
          count: `'agent'`: each real frame of an agent is a step. `'env'`: in lockstep each moment is one, however many
            agents have a frame in it; independent policies draw no moments, and each frame is a step, as in RLlib.

        Returns:
          As `sample`, with as large a `B` as it took.

        Raises:
          TypeError: `min_steps` is no int.
          ValueError: it is below 1, `count` is none of the two, or it is called inside a `tf.function`.
          Otherwise as `sample`.
        """
        check_count("min_steps", min_steps)
        if count not in ("env", "agent"):
            raise ValueError(f"count must be 'env' or 'agent', got {count!r}.")
        if not tf.executing_eagerly():
            raise ValueError("sample_at_least draws as often as it takes, which a tf.function cannot: call it eagerly.")
        keys = tuple(self._buffers) if self._lockstep is None and policy is None else (self._key(policy),)
        samples: dict[str, list[Any]] = {key: [] for key in keys}
        wanted = resolve_window(num_steps, window)
        of_moments = self._lockstep is not None and count == "env"
        most = 1 if wanted is None else wanted.length
        if not of_moments:
            most *= len(self._known.given) if self._lockstep is not None else len(keys)
        num_real = 0
        while num_real < min_steps:
            num = max(1, (min_steps - num_real) // most)
            for key in keys:
                items, info = self._drawn(key, num, num_steps, window)
                samples[key].append(self._unpack(key, items, info, num, num_steps, window))
                masks = [info.mask] if of_moments else tf.nest.flatten(samples[key][-1][1].mask)
                num_real += sum(int(tf.math.count_nonzero(mask)) for mask in masks)
        joined = {key: join_samples(each) for key, each in samples.items()}
        return _taken_apart(joined) if self._lockstep is None and policy is None else joined[keys[0]]

    def _sample_of(self, key: str, sample_batch_size: Any, num_steps: Any, window: Any) -> tuple[Items, Any]:
        items, info = self._drawn(key, sample_batch_size, num_steps, window)
        return self._unpack(key, items, info, sample_batch_size, num_steps, window)

    def _drawn(self, key: str, sample_batch_size: Any, num_steps: Any, window: Any) -> tuple[Items, BufferInfo]:
        """A sample of one of the buffers as it gives it."""
        self._check_open()
        try:
            return self._buffers[key].sample(sample_batch_size, num_steps, window=window)
        except EmptyBufferError as error:
            if not key:
                raise
            raise type(error)(f"policy {key!r}: {error}") from error

    def _unpack(
        self, key: str, items: Items, info: BufferInfo, sample_batch_size: Any, num_steps: Any, window: Any
    ) -> tuple[Items, Any]:
        """A sample of one of the buffers as its user sees it."""
        drawn = 0 if window is None else window.burn_in
        # Whole episodes differ in length, and windows that are cut short are padded.
        is_all_real = window.is_plain if window is not None else num_steps is not None or info.ids is info.keys
        if self._lockstep is not None:
            sizes = (sample_batch_size, num_steps, window)
            return self._lockstep.unpack(items, info, drawn, is_all_real=is_all_real, sizes=sizes)
        assert self._independent is not None  # the other mode
        return self._independent.unpack(
            key, items, info, drawn, is_all_real=is_all_real, sample_batch_size=sample_batch_size
        )

    def _expect(self, num_steps: Any, window: Any) -> None:
        """Windows of so many steps are drawn: of some flags in the items it is to be known whether they are ends."""
        wanted = resolve_window(num_steps, window)
        if self._lockstep is not None and wanted is not None and wanted.length > 1:
            self._lockstep.expect_windows()

    def _check_by_policy(self, *values: Any) -> None:
        for name, value in zip(("sample_batch_size", "num_steps", "window"), values, strict=True):
            if isinstance(value, Mapping):
                self._known.check_policies(name, value)


def _of(value: Any, policy: str) -> Any:
    return value.get(policy) if isinstance(value, Mapping) else value


@tf.autograph.experimental.do_not_convert
def _taken_apart(each: Mapping[str, tuple[Items, Any]]) -> tuple[dict[str, Items], dict[str, Any]]:
    """Items and infos by policy, of pairs by policy."""
    return {name: pair[0] for name, pair in each.items()}, {name: pair[1] for name, pair in each.items()}


def _inside(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of items as one of what is stored."""

    def inside(items: Any) -> Any:
        if hasattr(items, "frames"):
            return items._replace(frames=function(items.frames))
        return items._replace(frame=function(items.frame))

    return inside
