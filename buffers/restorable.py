"""What every buffer offers to be saved and restored, and what a class of buffers provides for that."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn

import tensorflow as tf

from . import saving
from .buffer_state import BufferState, RestorePlan
from .fields import Field
from .save_reports import RestoreReport, SaveReport
from .saved_beside import SavedBeside
from .saved_frames import KnownFrames
from .settings_text import settings_to_plain
from .spec import DataSpec

OnMismatch = Literal["error", "resize", "keep"]


class Restorable(tf.train.experimental.PythonState):
    """Saves and restores a buffer of this process; one that is served says what to do instead.

    A class of buffers calls `_remember(locals())` first in its constructor, names the arguments that decide about
    contents and draws in `_SAVED_SETTINGS`, and provides `_capture`, `_plan_restore` and `_has_drawn`; where what was
    added after a moment can be taken back, `_moment` and `_cut_back` too.
    """

    # Names of constructor arguments of which a saved buffer and the one that takes it over must not differ; and those
    # of them that cannot be changed by `on_mismatch='resize'` either.
    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = ()
    _FIXED_SETTINGS: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | tf.Variable | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        iterators: Mapping[str, Any] | None = None,
    ) -> SaveReport:
        """Writes all that the buffer holds, and all that decides how it goes on, into a new folder in `path`.

        Contents, priorities, counters, cursors, random numbers, unfinished episodes: restored, in this process or a
        new one, the next add evicts the frame that it would have evicted, and seeded draws go on as if nothing had
        happened. It is one moment of the buffer, also where other threads add meanwhile: they go on (where they are
        about to overwrite more frames that are not on the disk yet than a twentieth of the buffer, they wait).

        What is written follows what is held, and not the capacity. A save into a folder, or file system, that this
        object saved to or was restored from before writes new frames only; the others are hard links to the files of
        that save. Each save is whole all the same: it can be copied, restored and removed by itself.

        The folder appears when all of it is on the disk. A process that is killed before leaves the saves of before,
        and a hidden folder that the next save removes.

        Args:
          path: a folder, made where it is not there. Each save makes a folder in it, such as `step-000000001000`. Each
            buffer has its own: one that holds saves of another spec or class is refused, of another buffer told.
          step: of the training, an int of at least 0 or a scalar `tf.Variable`, by which the save can be found again
            (`restore`). None: one more than the last in `path`.
          keep_last: how many saves of this buffer, and of those that it was restored from, are kept, the newest ones;
            None: all of them.
          keep_every: saves with a `step` that is a multiple of this one are kept for ever; needs `keep_last`.
          iterators: by name, iterators of this buffer's datasets (`iter(buffer.as_dataset(...))`), whose place is saved
            too: what a dataset drew ahead, and did not deliver, comes after a restore.

        Returns:
          What was written, and where: a `SaveReport`.

        Raises:
          TypeError: a count is no int.
          ValueError: a count is too small, `keep_every` without `keep_last`, or an iterator cannot be saved.
          ValueError: the buffer is closed, or `path` holds saves of another class of buffers, or of another spec.
          TimeoutError: a dataset of `iterators` waits for data, and cannot be read.
          OSError: the disk is full, or `path` cannot be written to; what was saved before stays as it is.

        >>> import tempfile
        >>> from replayfeed.buffers import TFUniformReplayBuffer
        >>> buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 100)
        >>> ids = buffer.add_sequence([[3, 4, 5]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = buffer.save(folder, step=10)
        ...     other = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 100)
        ...     other.restore(folder).frames
        3
        >>> other.gather_all().numpy().tolist()
        [[3, 4, 5]]
        """
        return saving.save(self, path, step=step, keep_last=keep_last, keep_every=keep_every, iterators=iterators)

    def restore(
        self,
        path: str | os.PathLike[str],
        on_mismatch: OnMismatch = "error",
        *,
        step: int | None = None,
        cut_back: bool = False,
        iterators: Mapping[str, Any] | None = None,
    ) -> RestoreReport:
        """Takes over what a buffer of the same `data_spec` saved; what is held now is lost.

        Everything is checked before: that no file is missing, cut off or damaged, and that spec and settings fit. What
        is refused leaves the buffer as it is. No other thread may add or draw meanwhile. Datasets made before go on
        with the new contents, but for what they drew ahead: make a new iterator.

        Args:
          path: of `save`, or of one of the folders in it.
          on_mismatch: what becomes of settings that differ. `'error'`: refused, and all of them named. `'resize'`:
            those of this buffer; of the frames as many are kept as fit, by the rule by which it evicts. `'keep'`: those
            of the save, as if this buffer had been built with them; only before anything is drawn from it.
          step: of the model that the buffer is restored for: the save of that step is taken, else the last one before
            it, else the first one after it, with a warning that tells both numbers. None: the newest save.
          cut_back: where no save is of `step`, take the first one after it and leave out what was added after `step`,
            as far as it knows moments (`mark_step`, `save`) from then.
          iterators: by name as in `save`, iterators of this buffer's datasets that go on where those stood.

        Returns:
          What was restored, from where, and what was left out: a `RestoreReport`.

        Raises:
          FileNotFoundError: there is nothing at `path`, or no complete save; the message names incomplete ones.
          ValueError: a file is missing, cut off or damaged; it is no save, or of a newer format.
          ValueError: it is of another class of buffers, the spec differs (the fields are named), or settings do.
          ValueError: the buffer is closed.
        """
        return saving.restore(self, path, on_mismatch, step=step, cut_back=cut_back, iterators=iterators)

    def get_state(self) -> dict[str, Any]:
        """What `save` writes, as a dict of arrays and plain values: for actors and object stores.

        It is a copy, of the size of what is held.

        Raises:
          ValueError: the buffer is closed.
        """
        return saving.get_state(self)

    def set_state(self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error") -> RestoreReport:
        """Takes over what `get_state` gave; checks and arguments are those of `restore`.

        Raises:
          ValueError: `state` is no such dict, or as `restore`.
        """
        return saving.set_state(self, state, on_mismatch)

    def __reduce__(self) -> NoReturn:
        """Refuses: memory, locks and threads belong to a process.

        Raises:
          TypeError: always.
        """
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: build one with the same arguments, and hand over "
            "what it holds by get_state() and set_state(), or by save() and restore(); of a served one, its address."
        )

    def mark_step(self, step: int) -> None:
        """Remembers how far the buffer is at this step of the training, so that `restore(cut_back=True)` can go back.

        The last 1,000 are kept, and saved. `save(step=)` does this, too. Moments of higher steps are forgotten: a
        count that begins anew.

        Raises:
          TypeError: `step` is no int.
          ValueError: `step` is negative, or this class of buffers cannot be cut back.
        """
        saving.mark_step(self, step)

    def saved_in(
        self,
        folder: str | os.PathLike[str],
        *,
        step: tf.Variable | Callable[[], int] | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        iterators: Mapping[str, Any] | None = None,
    ) -> SavedBeside:
        """For `tf.train.Checkpoint(buffer=buffer.saved_in(folder))`: contents go to the folder, not through memory.

        The checkpoint itself holds which save it belongs to: writing one calls `save(folder)`, and restoring it calls
        `restore` with exactly that save. The buffer itself in a checkpoint, `buffer=buffer`, is written whole each
        time, and takes six times its content of memory meanwhile.

        Args:
          folder: for `save`. It belongs to the checkpoints: copy or move them together.
          step: the training's counter, as a `tf.Variable` or a function; None: saves are counted.
          keep_last: how many saves are kept, at least as many as checkpoints (`max_to_keep`); one more is, so that a
            process which is killed while it writes a checkpoint can go on from the one before. None: all of them.
          keep_every: as for `save`.
          iterators: as for `save`: saved and restored with the buffer, as of one moment.

        Raises:
          TypeError: a count is no int, or `step` can change no more.
          ValueError: a count is too small, or `keep_every` without `keep_last`; `folder` is not of this machine.

        >>> import tempfile
        >>> from replayfeed.buffers import TFUniformReplayBuffer
        >>> buffer = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 100)
        >>> ids = buffer.add_sequence([[3, 4, 5]])
        >>> with tempfile.TemporaryDirectory() as run:
        ...     path = tf.train.Checkpoint(buffer=buffer.saved_in(run + "/buffer")).write(run + "/checkpoint")
        ...     other = TFUniformReplayBuffer(tf.TensorSpec([], tf.int64), 1, 100)
        ...     _ = tf.train.Checkpoint(buffer=other.saved_in(run + "/buffer")).read(path).assert_consumed()
        >>> other.gather_all().numpy().tolist()
        [[3, 4, 5]]
        """
        return SavedBeside(self, folder, step=step, keep_last=keep_last, keep_every=keep_every, iterators=iterators)

    def serialize(self) -> bytes:
        """`get_state` as bytes: how `tf.train.Checkpoint(buffer=buffer)` saves the buffer, whole, through memory."""
        return saving.to_bytes(self)

    def deserialize(self, string_value: bytes) -> None:
        """Takes over what `serialize` gave; as `set_state`."""
        saving.from_bytes(self, string_value)

    # What a class of buffers provides

    def _capture(self) -> BufferState:
        """The state at this moment, at once: small arrays are copied, frames are `LiveFrames`.

        Raises:
          ValueError: the buffer is closed.
        """
        raise NotImplementedError

    def _plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        """What would become of this buffer; changes nothing.

        `state` is of this class, its spec fits, and its settings but for those that `resize` allows to differ.

        Raises:
          ValueError: the state contradicts itself, or cannot be taken over.
        """
        raise NotImplementedError

    def _has_drawn(self) -> bool:
        """Whether datasets or graphs may have been made that read this object's memory: it cannot be rebuilt then."""
        raise NotImplementedError

    def _draws(self) -> int:
        """Grows with each draw that changes what can be drawn afterwards, as where windows are drawn so many times."""
        return 0

    def _moment(self) -> Any:
        """How far the buffer is, as a plain value, for `_cut_back`; None: it cannot be cut back."""
        return None

    def _cut_back(self, moment: Any) -> int:
        """Takes back what was added after `moment`; returns how many frames that were."""
        raise NotImplementedError

    # What all of them share

    _spec: DataSpec
    _arguments: dict[str, Any]
    # Moments that `_cut_back` knows, as [step, moment].
    _marks: list[list[Any]]
    # Files in which frames of this buffer are saved, by the path of the part that they belong to.
    _saved_segments: dict[str, KnownFrames]
    _save_lock: threading.Lock
    # The same for all saves of a buffer, and of those that were restored from them.
    _lineage: str

    def _remember(self, arguments: Mapping[str, Any]) -> None:
        """Keeps the constructor's arguments: `locals()`, first thing in it."""
        self._arguments = {name: value for name, value in arguments.items() if name not in ("self", "__class__")}
        self._marks = []
        self._saved_segments = {}
        self._save_lock = threading.Lock()
        self._lineage = uuid.uuid4().hex

    def _settings(self) -> dict[str, Any]:
        """Those that are saved, as plain values."""
        return settings_to_plain({name: self._arguments[name] for name in self._SAVED_SETTINGS})

    def _rebuilt(self, settings: Mapping[str, Any]) -> Restorable:
        """What the constructor makes with these settings instead of its own."""
        return type(self)(**{**self._arguments, **settings})

    def _saved_fields(self) -> Sequence[Field]:
        """Fields of a frame."""
        fields: Sequence[Field] = self._spec.fields
        return fields
