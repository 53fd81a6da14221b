"""How all that is on a server is saved: by the server, which its clients ask; what they keep of it themselves."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import tensorflow as tf

from .reverb_checkpoint import compare_with, mark_step, refuse, take_checkpoint, to_bytes
from .reverb_control import CheckpointReport
from .reverb_link import ServerLink


class SavedByServer(tf.train.experimental.PythonState):
    """The part of a served buffer, of a group of tables and of the tables of many agents that has them saved."""

    # Of the class itself.
    _link: ServerLink
    _check_open: Callable[[], None]

    @property
    @abc.abstractmethod
    def local_server(self) -> Any:
        """The server given or owned, or None."""

    @abc.abstractmethod
    def _settle(self) -> None:
        """Confirms what was added, but for what a limiter holds back until somebody draws."""

    @abc.abstractmethod
    def _served_tables(self) -> tuple[str, ...]:
        """The tables that are written and read here."""

    def checkpoint(self, step: int | None = None, *, timeout_s: float = 600.0) -> CheckpointReport:
        """Asks the server for a checkpoint of all its tables, and returns when it is complete.

        Pending writes of this object are confirmed first, but for what a limiter holds back. The checkpoint is on the
        server's machine, in the `checkpoint_dir` of its `ReplayServer`; when that is started again it begins with the
        newest one. Writers and readers of all processes wait while Reverb takes it.

        Args:
          step: the trainer's, which the server's manifest keeps; None: what was last told (`mark_step`), if any.
          timeout_s: how long it may take.

        Returns:
          Where it is on the server's machine, what is in it, and what it took. A `reverb.Server` of others tells the
          path only, and nobody looks after that checkpoint; a warning says so.

        Raises:
          TypeError, ValueError: `step` is no int, or negative; this is closed.
          ValueError: the server keeps no checkpoints.
          WaitTimeoutError: it takes longer. It goes on, and may be complete later.
          RuntimeError, OSError: the server cannot write it; the message says why.

        >>> import tempfile
        >>> from replayfeed.buffers import ReverbReplayBuffer
        >>> folder, spec = tempfile.mkdtemp(), tf.TensorSpec([], tf.int64)
        >>> with ReverbReplayBuffer.local(spec, max_size=9, sequence_length=1, checkpoint_dir=folder) as buffer:
        ...     _ = buffer.add_batch([5])
        ...     buffer.checkpoint(step=100).items["replay"]
        1
        >>> with ReverbReplayBuffer.local(spec, max_size=9, sequence_length=1, checkpoint_dir=folder) as buffer:
        ...     buffer.gather_all().numpy().tolist()
        [[5]]
        """
        self._check_open()
        self._settle()
        return take_checkpoint(self._link, self.local_server, step, timeout_s)

    def mark_step(self, step: int) -> None:
        """Tells the server the trainer's step, which its checkpoints have from now on, whoever asks for them.

        Raises:
          TypeError, ValueError: `step` is no int, or negative; this is closed.
          ValueError: the server keeps no checkpoints.
          WaitTimeoutError: the server does not answer within `timeout_s`.
        """
        self._check_open()
        mark_step(self._link, step)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | tf.Variable | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        iterators: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Refuses: what is served is saved by its server, see `checkpoint`.

        Raises:
          ValueError: always.
        """
        del path, step, keep_last, keep_every, iterators
        refuse("save")

    def restore(
        self,
        path: str | os.PathLike[str],
        on_mismatch: str = "error",
        *,
        step: int | None = None,
        cut_back: bool = False,
        iterators: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Refuses: a server begins with its newest checkpoint, see `ReplayServer`.

        Raises:
          ValueError: always.
        """
        del path, on_mismatch, step, cut_back, iterators
        refuse("restore")

    def saved_in(
        self,
        folder: str | os.PathLike[str],
        *,
        step: tf.Variable | Callable[[], int] | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        iterators: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Refuses, as `save`; `tf.train.Checkpoint(buffer=buffer)` keeps which checkpoint of the server it belongs to.

        Raises:
          ValueError: always.
        """
        del folder, step, keep_last, keep_every, iterators
        refuse("saved_in")

    def get_state(self) -> NoReturn:
        """Refuses, as `save`.

        Raises:
          ValueError: always.
        """
        refuse("get_state")

    def set_state(self, state: Mapping[str, Any], on_mismatch: str = "error") -> NoReturn:
        """Refuses, as `restore`.

        Raises:
          ValueError: always.
        """
        del state, on_mismatch
        refuse("set_state")

    def serialize(self) -> bytes:
        """What `tf.train.Checkpoint(buffer=buffer)` keeps: the path and step of the server's newest checkpoint.

        It takes none: call `checkpoint(step)` before. A server that does not answer only gives a warning.
        """
        return to_bytes(self._link, self._served_tables())

    def deserialize(self, string_value: bytes) -> None:
        """Compares with what `serialize` told: a warning says where the server began with another checkpoint.

        Nothing on the server changes.

        Raises:
          ValueError: another kind of buffer was saved.
        """
        compare_with(self._link, self._served_tables(), string_value)
