"""The on-policy buffer: `T` steps of `B` streams, their advantages, minibatches, and then the next rollout."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from .adds import Adds
from .advantages import (
    METHODS,
    Advantages,
    Method,
    Transitions,
    generalized_advantages,
    n_step_advantages,
    next_values,
)
from .base import BufferInfo, Ids, Items, ReplayBuffer
from .callbacks import call_weakly
from .counts import check_count
from .episode_ends import EpisodeRule, FinalFrame
from .memory import check_capacity_fits
from .nests import Array, Nest
from .priority_updates import WithoutPriorities
from .rollout_fields import STATE_FLAG, find_fields, warn_of_unclear_flag
from .rollout_minibatches import minibatch_dataset
from .rollout_state import SavedRollout
from .rollout_writer import WHY_STREAMS_STAY, RolloutWriter, refuse_streams
from .spec import DataSpec, ItemChecker
from .stats import BufferStats
from .uniform import TFUniformReplayBuffer
from .windows import Window


class RolloutBuffer(SavedRollout, WithoutPriorities, ReplayBuffer):
    """Holds one rollout, `num_steps` frames of each stream, computes its advantages and cuts it into minibatches.

    Frame t holds what was seen, done and earned: `(o_t, a_t, r_t, discount_t)`. An episode ends in one of two ways:

        with a boundary frame          o0 r0 | o1 r1 | o2 --  || o0' ...     mask 1 1 0 1
        (Trajectory, RLDS)             the end is o2: V(o2) is values[2], what the third frame earns means nothing

        without                        o0 r0 | o1 r1 || o0' ...              mask 1 1 1
        (end_of_episode, flags)        the final observation is in no frame: V of it is final_values[1]

    Whether an end is real (0 follows) or a time limit (V of the final observation follows) is read from the fields:
    a discount of 0, or a terminal flag, is a real end, and wins where a truncation is flagged too. A terminal flag on a
    boundary frame speaks of the transition into that frame, on any other of the transition that starts there.

    The rollout is used, then cleared, by the caller: `minibatches` and reads leave it as it is, and an add that
    would go beyond `num_steps` is refused. TF-Agents' step driver leaves boundary frames out of its count and so makes
    more frames than it was told: fill a rollout by `num_steps` steps of a loop of your own. What an agent wants to know
    of its own past policy (log-probabilities, logits) belongs into the spec.

    A buffer is saved with the rollout as it is, half or whole, with what `advantages` last gave for it, and with the
    place in the orders of minibatches. Restored with `on_mismatch='resize'` into another `num_steps` a rollout goes on
    where it fits; one that has more steps is refused, since without its first ones it would be none.

    Args:
      data_spec: nest of `tf.TensorSpec` of one frame; fixed-width dtypes, static shapes.
      batch_size: `B`, streams that `add_batch` writes side by side.
      num_steps: `T`, frames of each stream in a rollout; `capacity` is `B * T` frames.
      gamma: discount of each step, 0 to 1; times the transition's own discount where the spec has one.
      lam: lambda of GAE, 0 to 1.
      seed: of `sample`, `as_dataset` and `minibatches`; None: they differ in each run.
      end_of_episode_fn: `items -> bool [B]` (`[B, T]` in `add_sequence`) for specs that do not tell an episode's
        end themselves; gets the items as NumPy arrays.
      final_frame: whether an episode's last frame is a boundary frame (`'observation'`) or an ordinary one
        (`'ordinary'`). `'auto'`: a boundary frame where `step_type` or `is_last` in the spec tells the end.
      cast: convert input within its kind (float64 to float32) instead of refusing it.
      reward_field: path of the reward, as `'extras/reward'`.
      discount_field: path of the transitions' discounts, gamma not included; `'auto'`: `discount`, if the spec has it;
        None: each is 1.
      terminal_field: path of a flag of real ends; `'auto'`: `is_terminal`, `terminal` or `terminated`, if there.
      truncated_field: path of a flag of other ends; `'auto'`: `truncated`, if there. Flags end episodes in specs that
        do not tell the end by `step_type` or `is_last`.

    Warns (`UserWarning`) where a field `done` is all that may tell ends, and nothing says how to read it.

    Raises:
      TypeError: `batch_size` or `num_steps` is no int.
      ValueError: one of them is below 1.
      ValueError: `gamma` or `lam` is not between 0 and 1.
      ValueError: a field is missing, ambiguous, or not one real number a frame.
      ValueError: `is_terminal` without `is_last`, and `final_frame` does not say which transition it means.
      ValueError: the capacity does not fit into memory.
      TypeError, ValueError: as `TFUniformReplayBuffer` raises them.

    Three steps of reward 1, the second cut by a time limit; V is 0.5, and 2 at the observation that was cut off:

    >>> buffer = RolloutBuffer({"reward": tf.TensorSpec([], tf.float32)}, 1, 3, gamma=0.9, lam=0.5, seed=0)
    >>> for ends in (False, True, False):
    ...     _ = buffer.add_batch({"reward": np.ones([1], np.float32)}, end_of_episode=np.array([ends]))
    >>> result = buffer.advantages(np.full([1, 3], 0.5), [0.5], final_values=[[0.0, 2.0, 0.0]])
    >>> result.advantages.numpy().round(4)
    array([[1.985, 2.3  , 0.95 ]], dtype=float32)
    >>> for items, info in buffer.minibatches(2, seed=1):
    ...     print(items["reward"].numpy(), info.returns.numpy().round(3))
    [1. 1.] [2.485 2.8  ]
    [1.] [1.45]
    >>> buffer.clear()
    """

    def __init__(
        self,
        data_spec: Nest,
        batch_size: int,
        num_steps: int,
        *,
        gamma: float = 0.99,
        lam: float = 0.95,
        seed: int | None = None,
        end_of_episode_fn: Callable[[Nest], Any] | None = None,
        final_frame: FinalFrame = "auto",
        cast: bool = False,
        reward_field: str = "reward",
        discount_field: str | None = "auto",
        terminal_field: str | None = "auto",
        truncated_field: str | None = "auto",
    ) -> None:
        self._remember(locals())
        check_count("batch_size", batch_size)
        check_count("num_steps", num_steps)
        _check_share("gamma", gamma)
        _check_share("lam", lam)
        self._spec = DataSpec(data_spec)
        fields = find_fields(self._spec, reward_field, discount_field, terminal_field, truncated_field)
        rule = EpisodeRule(self._spec, end_of_episode_fn, final_frame)
        if fields.terminal_path == STATE_FLAG and not rule.told_by_spec and final_frame == "auto":
            raise ValueError(
                f"data_spec has {STATE_FLAG!r} but no 'is_last' to say what an episode's last frame is: give "
                "final_frame='observation' if it holds the terminal observation, as in RLDS, or final_frame='ordinary' "
                "if the flag speaks of the transition that starts at its frame."
            )
        if not rule.told_by_items and fields.terminal is None and fields.truncated is None:
            warn_of_unclear_flag(self._spec, stacklevel=2)
        check_capacity_fits(int(batch_size) * int(num_steps) * self._spec.frame_bytes, "num_steps or batch_size")
        with warnings.catch_warnings():
            # Warned of above, in this buffer's own words.
            warnings.simplefilter("ignore")
            self._frames = TFUniformReplayBuffer(
                data_spec, batch_size, num_steps, seed=seed, final_frame=final_frame, cast=cast
            )
        self._writer = RolloutWriter(self._frames, self._spec, fields, rule, int(num_steps))
        checker = ItemChecker(self._spec, int(batch_size), cast=cast)
        self._adds = Adds(self._spec, checker, int(batch_size), self._writer)
        self._gamma = float(gamma)
        self._lam = float(lam)
        self._shape = [int(batch_size), int(num_steps)]
        self._rng = np.random.default_rng(seed)
        # The last result of `advantages`, and the version of the rollout that it belongs to.
        self._estimates: tuple[int, Advantages] | None = None
        # Counts restores, after which ids may name other frames than before.
        self._num_restores = 0
        # Whether graphs were made that know the rollout's shape.
        self._is_read = False

    @property
    def data_spec(self) -> Nest:
        return self._spec.nest

    @property
    def batch_size(self) -> int:
        return self._frames.batch_size

    @property
    def num_steps(self) -> int:
        """`T`, frames of each stream in a whole rollout."""
        return self._shape[1]

    @property
    def capacity(self) -> int:
        return self._frames.capacity

    @property
    def capacity_unit(self) -> Literal["frames"]:
        return "frames"

    def __len__(self) -> int:
        return len(self._frames)

    def num_frames(self) -> tf.Tensor:
        return self._frames.num_frames()

    # Writing

    def add_batch(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores one frame of each stream; arguments and result as those of `TFUniformReplayBuffer.add_batch`.

        Raises:
          ValueError: the items do not match `data_spec`, or another argument does not fit. Nothing is stored.
          ValueError: RLDS's `is_terminal` is true on a frame that is not its episode's last. Nothing is stored.
          ValueError: the rollout is whole: `clear` first. Nothing is stored.
          ValueError: `streams` is given: see `let_streams_part`. Nothing is stored.
          ValueError: the buffer is closed.
        """
        refuse_streams(streams)
        return self._adds.add_batch(items, end_of_episode, priorities, streams)

    def add_sequence(
        self, items: Items, *, end_of_episode: Any = None, priorities: Any = None, streams: Any = None
    ) -> Ids:
        """Stores steps `[B, n, ...]` of each stream: the same as `n` calls of `add_batch`, all or none.

        Raises:
          ValueError: as `add_batch`. Nothing is stored, also where only the last steps find no room.
        """
        refuse_streams(streams)
        return self._adds.add_sequence(items, end_of_episode, priorities, streams)

    def let_streams_part(self) -> None:
        """Refuses: a rollout is `[B, T]`, with a frame of every stream at each step.

        Raises:
          ValueError: always; one buffer for each stream that goes at its own pace does instead.
        """
        raise ValueError(f"streams cannot part here: {WHY_STREAMS_STAY}")

    def end_stream(self, b: int | None = None) -> None:
        """Stream `b` (None: all of them) stops at its newest frame: cut there, as by a time limit.

        Raises:
          ValueError: there is no stream `b`.
        """
        self._writer.end_stream(b)

    # Advantages

    def advantages(
        self,
        values: Any,
        bootstrap_value: Any,
        final_values: Any = None,
        *,
        method: Method = "gae",
        n: int | None = None,
    ) -> Advantages:
        """Advantages and returns of the whole rollout, eagerly or inside a `tf.function`.

        No sum runs across an episode's end. Called eagerly, the result is what `minibatches` deals out.

        Args:
          values: float `[B, T]`, V of each frame's observation, boundary frames included.
          bootstrap_value: float `[B]`, V of the observation after the newest frame; 0 where that is terminal. Without
            effect where the newest frame ends its episode or its discount is 0.
          final_values: float `[B, T]`, V of the final observation, read at frames that end an episode without a real
            end and without a boundary frame after them, nowhere else.
          method: `'gae'`: Schulman et al. 2016, equation 16, with the constructor's `lam`. `'n_step'`: the return of
            `n` steps, then V. `'monte_carlo'`: the return up to the episode's end. A return that is cut, by a time
            limit or the rollout's end, goes on with V there, so that `n_step` without `n` and `monte_carlo`
            are both GAE with a lambda of 1.
          n: of `'n_step'`; None: to the episode's or the rollout's end (A2C).

        Returns:
          float32 `[B, T]`, and the mask: False on boundary frames, where advantages are 0 and returns are the values.

        Raises:
          ValueError: `method` is none of the three, or `n` is given to another than `'n_step'`.
          TypeError, ValueError: `n` is no int, or below 1.
          ValueError: a value's dtype or shape does not fit.
          ValueError: fewer than `num_steps` steps are held. In a `tf.function` this and what follows is
            `tf.errors.InvalidArgumentError`.
          ValueError: a discount is negative or not finite.
          ValueError: a final value is needed and `final_values` is None.
        """
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}.")
        check_count("n", n, optional=True)
        if n is not None and method != "n_step":
            raise ValueError(f"n={n} belongs to method='n_step', got method={method!r}.")
        values = _as_floats("values", values, self._shape)
        bootstrap_value = _as_floats("bootstrap_value", bootstrap_value, self._shape[:1])
        if final_values is not None:
            final_values = _as_floats("final_values", final_values, self._shape)
        version = self._writer.version
        transitions = self._transitions(has_final_values=final_values is not None)
        successors = next_values(transitions.cut, values, bootstrap_value, final_values)
        if method == "gae":
            estimates = generalized_advantages(transitions, values, successors, self._lam)
        else:
            estimates = n_step_advantages(transitions, values, successors, n)
        result = Advantages(estimates, estimates + values, values, tf.convert_to_tensor(transitions.mask))
        if tf.executing_eagerly():
            self._estimates = (version, result)
        return result

    def minibatches(
        self,
        size: int,
        epochs: int = 1,
        seed: int | None = None,
        *,
        advantages: Advantages | None = None,
        whole_streams: bool = False,
        drop_remainder: bool = False,
    ) -> tf.data.Dataset:
        """A dataset of `(items, RolloutInfo)` that visits each transition once an epoch, each epoch in another order.

        Boundary frames hold no transition and do not come. The dataset may be iterated over more than once and gives
        the same each time. It belongs to this rollout: after `clear`, or `restore`, it raises rather than mix two
        rollouts. A training that was saved in the middle of it goes on with one that is made after the restore, with
        the same `seed`, and `skip(minibatches that came)`.

        Args:
          size: transitions of a minibatch; the last one of an epoch is smaller where `size` does not divide them.
          epochs: how often each transition comes.
          seed: of the orders; None: the next one derived from the constructor's.
          advantages: a result of `advantages`, computed in a `tf.function` or changed since (normalised); None: what
            the last eager call of `advantages` gave.
          whole_streams: for recurrent policies: rows are whole streams `[N, T, ...]`, boundary frames included,
            and `size` counts streams.
          drop_remainder: leave out a last minibatch of fewer than `size`.

        Returns:
          Items `[N, ...]` and `RolloutInfo` of `[N]` (`[N, T, ...]` and `[N, T]`).

        Raises:
          ValueError: called inside a `tf.function`.
          TypeError, ValueError: `size` or `epochs` is no int, or below 1; `seed` is no int of at least 0.
          ValueError: there are no advantages of the rollout as it is now.
          ValueError: `advantages` does not have the rollout's shape, or the rollout is not whole.
          ValueError: with `drop_remainder`, no minibatch would come.
          tf.errors.InvalidArgumentError: at `next`: the rollout was cleared, or another one restored.
        """
        if not tf.executing_eagerly():
            raise ValueError("make the minibatches outside of the tf.function, and iterate over them inside it.")
        check_count("size", size)
        check_count("epochs", epochs)
        if seed is not None and (isinstance(seed, bool) or not hasattr(seed, "__index__") or seed < 0):
            raise ValueError(f"seed must be an int of at least 0, or None, got {seed!r}.")
        estimates = self._known_estimates() if advantages is None else self._checked_estimates(advantages)
        self._is_read = True
        if seed is None:
            seed = int(self._rng.integers(2**31))
        return minibatch_dataset(
            self._writer.ids(),
            estimates,
            self._gather_in_graph,
            int(size),
            int(epochs),
            int(seed),
            whole_streams=whole_streams,
            drop_remainder=drop_remainder,
        )

    # Reading: the frames are those of a uniform buffer that is never overwritten.

    def as_dataset(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        num_parallel_calls: int | None = None,
        sequence_preprocess_fn: Callable[[Any], Any] | None = None,
        single_deterministic_pass: bool = False,
        *,
        window: Window | None = None,
        epochs: int | None = None,
    ) -> tf.data.Dataset:
        """Windows of the rollout, without advantages, as `TFUniformReplayBuffer.as_dataset` gives them."""
        return self._frames.as_dataset(
            sample_batch_size,
            num_steps,
            num_parallel_calls,
            sequence_preprocess_fn,
            single_deterministic_pass,
            window=window,
            epochs=epochs,
        )

    def sample(
        self,
        sample_batch_size: int | None = None,
        num_steps: int | None = None,
        *,
        window: Window | None = None,
    ) -> tuple[Items, BufferInfo]:
        """Windows of the rollout, without advantages, as `TFUniformReplayBuffer.sample` gives them."""
        return self._frames.sample(sample_batch_size, num_steps, window=window)

    def get(self, ids: Ids, num_steps: int | None = None) -> Items:
        return self._frames.get(ids, num_steps)

    def gather_all(self) -> Items:
        """The rollout so far, leaves `[B, n, ...]`, boundary frames included: what TF-Agents' agents train on."""
        return self._frames.gather_all()

    def clear(self) -> None:
        """Makes room for the next rollout. Episodes that are open go on in it: no boundary is made here.

        Ids go on, so that minibatches of the cleared rollout raise instead of showing the next one's frames.
        """
        self._writer.clear()
        self._estimates = None

    def stats(self) -> BufferStats:
        """Counts, shares and bytes as of now."""
        return self._frames.stats()

    def flush(self) -> None:
        """Nothing to do: what was added can be read at once."""

    def close(self) -> None:
        """Refuses further adds and reads, and frees the memory."""
        self._frames.close()
        self._estimates = None

    # How it is done

    def _num_gone(self, keys: Array) -> int:
        return self._frames._num_gone(keys)

    def _transitions(self, *, has_final_values: bool) -> Transitions:
        if tf.executing_eagerly():
            return self._writer.transitions(self._gamma, has_final_values=has_final_values)
        self._is_read = True

        def read(buffer: RolloutBuffer) -> tuple[Array, ...]:
            return tuple(buffer._writer.transitions(buffer._gamma, has_final_values=has_final_values))

        leaves = call_weakly(self, read, [], [tf.float32, tf.float32, tf.bool, tf.bool, tf.bool])
        for leaf in leaves:
            leaf.set_shape(self._shape)
        return Transitions(*leaves)

    @tf.autograph.experimental.do_not_convert
    def _gather_in_graph(self, ids: tf.Tensor) -> Nest:
        fields, num_restores = self._spec.fields, self._num_restores

        def gather(buffer: RolloutBuffer, ids: Array) -> list[Array]:
            if buffer._num_restores != num_restores:
                raise ValueError("the buffer was restored since these minibatches were made: make new ones.")
            return buffer._gather(ids)

        leaves = call_weakly(self, gather, [ids], [field.dtype for field in fields])
        for leaf, field in zip(leaves, fields, strict=True):
            leaf.set_shape([*ids.shape, *field.shape])
        return tf.nest.pack_sequence_as(self._spec.dataset_nest(), leaves)

    def _gather(self, ids: Array) -> list[Array]:
        try:
            items = self._frames.get(ids)
        except ValueError as error:
            raise ValueError(
                f"the rollout that these minibatches belong to was cleared; make new ones from the next one. ({error})"
            ) from error
        return [np.asarray(leaf) for leaf in self._spec.flatten(items)]

    def _known_estimates(self) -> Advantages:
        if self._estimates is None or self._estimates[0] != self._writer.version:
            held, (_, wanted) = self._writer.num_steps_held, self._shape
            raise ValueError(
                f"there are no advantages of this rollout ({held} of {wanted} steps): call advantages() on the whole "
                "rollout after the last add, or pass advantages=."
            )
        return self._estimates[1]

    def _checked_estimates(self, given: Advantages) -> Advantages:
        if not isinstance(given, Advantages):
            raise TypeError(f"advantages must be what advantages() returned, got {type(given).__name__}.")
        if self._writer.num_steps_held < self._shape[1]:
            raise ValueError(f"the rollout holds {self._writer.num_steps_held} of {self._shape[1]} steps.")
        names = ("advantages", "returns", "values")
        floats = {name: _as_floats(f"advantages.{name}", getattr(given, name), self._shape) for name in names}
        mask = tf.convert_to_tensor(given.mask)
        if mask.dtype != tf.bool or mask.shape != self._shape:
            raise ValueError(f"advantages.mask: expected {self._shape} bool, got {mask.shape} {mask.dtype.name}.")
        return Advantages(**floats, mask=mask)


def _check_share(name: str, value: Any) -> None:
    try:
        is_share = 0 <= value <= 1
    except TypeError:
        is_share = False
    if not is_share:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}.")


def _as_floats(name: str, value: Any, shape: list[int]) -> tf.Tensor:
    """`value` as float32 of this shape; no gradient flows through it. Plain Python numbers may be ints."""
    is_plain = all(type(number) in (int, float) for number in tf.nest.flatten(value))
    tensor = tf.convert_to_tensor(value, tf.float32 if is_plain else None)
    if not tensor.dtype.is_floating or not tensor.shape.is_compatible_with(shape):
        got = tensor.shape.as_list() if tensor.shape.rank is not None else "unknown shape"
        raise ValueError(f"{name}: expected {shape} float32, got {got} {tensor.dtype.name}.")
    return tf.stop_gradient(tf.ensure_shape(tf.cast(tensor, tf.float32), shape))
