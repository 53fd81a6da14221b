"""How a server keeps checkpoints of its tables, and begins with them: the settings, checked."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args

from .counts import check_count

OnMismatch = Literal["error", "keep", "override"]
OnDamaged = Literal["error", "empty"]


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """What `ReplayServer` is told of checkpoints, as one object: for buffers that start a server of their own too.

    Args:
      checkpoint_dir: where checkpoints are, on the server's machine; it is made. One server at a time.
      on_mismatch: what if the newest checkpoint was made with other settings. `'error'`: a `ValueError` names each.
        `'keep'`: the stored ones hold, tables that are not asked for included. `'override'`: the stored items go into
        tables of the settings asked for (`ReplayServer`).
      on_damaged: what if there are checkpoints that were complete, and all of them are damaged now. `'error'`: a
        `ValueError` names each. `'empty'`: tables begin empty, and an error on the log says so. Both leave them where
        they are. One that is damaged beside others is passed over with a warning, and so are those that were never
        complete.
      checkpoint_every_s: seconds between two checkpoints; none is taken if nothing was inserted or drawn since. None:
        not by time.
      checkpoint_every_inserts: inserts, of all tables asked for together, between two checkpoints; looked at five times
        a second. None: not by inserts.
      keep_last: complete checkpoints that stay; each is whole, and as large as the tables' data. None: all.
      checkpoint_on_stop: take one when the server is stopped, or the buffer that has it closed. (A signal that ends the
        process does neither.)
      restore_timeout_s: how long finding, reading and checking a checkpoint may take.

    Raises:
      TypeError: a value is of the wrong type.
      ValueError: `on_mismatch` or `on_damaged` is none of its words, `keep_last` or `checkpoint_every_inserts` is below
        1, or a number of seconds is not positive and finite.
      ValueError: `checkpoint_dir` is no folder of this machine.

    >>> import tempfile, tensorflow as tf
    >>> from replayfeed.buffers import ReverbReplayBuffer
    >>> kept = CheckpointConfig(tempfile.mkdtemp(), checkpoint_every_s=600.0, keep_last=2, checkpoint_on_stop=True)
    >>> spec = tf.TensorSpec([], tf.int64)
    >>> with ReverbReplayBuffer.local(spec, max_size=9, sequence_length=1, checkpoints=kept) as buffer:
    ...     _ = buffer.add_batch([5])
    >>> with ReverbReplayBuffer.local(spec, max_size=9, sequence_length=1, checkpoints=kept) as buffer:
    ...     buffer.gather_all().numpy().tolist()
    [[5]]
    """

    checkpoint_dir: str | os.PathLike[str]
    _: dataclasses.KW_ONLY
    on_mismatch: OnMismatch = "error"
    on_damaged: OnDamaged = "error"
    checkpoint_every_s: float | None = None
    checkpoint_every_inserts: int | None = None
    keep_last: int | None = 3
    checkpoint_on_stop: bool = False
    restore_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not isinstance(self.checkpoint_dir, str | os.PathLike):
            raise TypeError(f"checkpoint_dir must be a path, got {self.checkpoint_dir!r}.")
        if "://" in os.fsdecode(self.checkpoint_dir):
            raise ValueError(
                f"checkpoint_dir must be of this machine, got {os.fsdecode(self.checkpoint_dir)!r}; give a folder of a "
                "disk, and copy its checkpoints."
            )
        _check_word("on_mismatch", self.on_mismatch, get_args(OnMismatch))
        _check_word("on_damaged", self.on_damaged, get_args(OnDamaged))
        if self.checkpoint_every_s is not None:
            _check_seconds("checkpoint_every_s", self.checkpoint_every_s)
        check_count("checkpoint_every_inserts", self.checkpoint_every_inserts, optional=True)
        check_count("keep_last", self.keep_last, optional=True)
        if not isinstance(self.checkpoint_on_stop, bool):
            raise TypeError(f"checkpoint_on_stop must be True or False, got {self.checkpoint_on_stop!r}.")
        _check_seconds("restore_timeout_s", self.restore_timeout_s)


def chosen_config(checkpoints: CheckpointConfig | None, given: Mapping[str, Any]) -> CheckpointConfig | None:
    """The one config of two ways to tell it; None: no checkpoints are kept.

    Args:
      checkpoints: the whole, or None.
      given: by name each argument of `CheckpointConfig`; `checkpoint_dir` None where it is not told, others at their
        defaults.

    Raises:
      TypeError: `checkpoints` is no `CheckpointConfig`.
      ValueError: both are told, or an option without the folder.
      TypeError, ValueError: as `CheckpointConfig`.

    >>> chosen_config(None, {"checkpoint_dir": "kept", "keep_last": 2}).keep_last
    2
    """
    defaults = {field.name: field.default for field in dataclasses.fields(CheckpointConfig)}
    defaults["checkpoint_dir"] = None
    told = [name for name, value in given.items() if value != defaults[name]]
    if checkpoints is None:
        if given["checkpoint_dir"] is not None:
            return CheckpointConfig(**given)
        if told:
            raise ValueError(f"{' and '.join(told)} need{'s' * (len(told) == 1)} checkpoint_dir, where checkpoints go.")
        return None
    if not isinstance(checkpoints, CheckpointConfig):
        raise TypeError(f"checkpoints must be a CheckpointConfig, got {checkpoints!r}.")
    if told:
        raise ValueError(f"{' and '.join(told)} beside checkpoints: say it in the CheckpointConfig, or leave that out.")
    return checkpoints


def _check_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}, got {value!r}.")


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}.")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
