"""Saving and restoring buffers: what is written when, what is checked first, and what is told."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from .buffer_state import BufferState, FrameSource, LiveFrames, RestorePlan
from .memory import format_bytes, memory_limit
from .nests import Array
from .row_numbers import pieces_of
from .save_reports import RestoreReport, SaveReport, differing
from .saved_fields import describe_differences, field_names
from .saved_folder import (
    SavedFolder,
    SaveHead,
    check_retention,
    find_saves,
    folders_with_saves,
    is_save,
    list_saves,
    open_save,
    remove_old,
    write_save,
)
from .saved_frames import KnownFrames
from .saved_iterators import IteratorState, check_iterators, restore_iterators, states_of, write_iterators
from .settings_text import differences, is_opaque, settings_from_plain
from .state_dict import dict_from_bytes, dict_to_bytes, state_from_dict, state_to_dict

if TYPE_CHECKING:
    from .restorable import OnMismatch, Restorable

_MOST_MARKS = 1000
_TELL_EVERY_S = 5.0
_MOST_ATTEMPTS = 100
_MOST_LOOKS = 10

# What TensorFlow's way of saving takes for each byte held (measured at 200 MB); told from this size on.
_COPIES_IN_CHECKPOINTS = 6
_LARGE_BYTES = 10**9

_logger = logging.getLogger(__name__)


def save(
    buffer: Restorable,
    path: str | os.PathLike[str],
    *,
    step: int | None,
    keep_last: int | None,
    keep_every: int | None,
    iterators: Mapping[str, Any] | None,
) -> SaveReport:
    """See `Restorable.save`."""
    place = _local(path)
    if step is not None:
        step = _as_step(step)
    check_retention(keep_last, keep_every)
    if os.path.isfile(place):
        raise NotADirectoryError(f"{place!r} is a file: give a folder for the saves.")
    if is_save(place):
        raise ValueError(f"{place!r} is itself a save: give the folder that saves are in, {os.path.dirname(place)!r}.")
    started = time.monotonic()
    with _saving(buffer):
        # A number that nobody gave is no step of the training.
        is_step = step is not None
        before = list_saves(place) if os.path.isdir(place) else []
        _check_folder(buffer, place, before)
        if step is None:
            step = before[-1].step + 1 if before else 0
        places, state = _captured(buffer, iterators)
        try:
            marks = _with_mark(buffer._marks, step, state.moment) if is_step else buffer._marks
            written = write_save(
                place,
                state,
                step=step,
                lineage=buffer._lineage,
                extra={"marks": marks},
                known=buffer._saved_segments,
                write_iterators=functools.partial(write_iterators, states=places) if places else None,
            )
        finally:
            state.close()
        buffer._saved_segments = dict(written.known)
        buffer._marks = marks
        removed = remove_old(place, buffer._lineage, keep_last, keep_every)
    report = SaveReport(
        path=written.path,
        step=step,
        frames=state.num_frames,
        num_bytes=written.num_bytes,
        num_bytes_written=written.num_bytes_written,
        seconds=time.monotonic() - started,
        removed=removed,
    )
    _logger.info("%s", report)
    return report


def restore(
    buffer: Restorable,
    path: str | os.PathLike[str],
    on_mismatch: OnMismatch,
    *,
    step: int | None,
    cut_back: bool,
    iterators: Mapping[str, Any] | None,
) -> RestoreReport:
    """See `Restorable.restore`."""
    place = _local(path)
    if step is not None:
        step = _as_step(step)
    if cut_back and step is None:
        raise ValueError("cut_back=True leaves out what was added after a step: give step too.")
    started = time.monotonic()
    for attempt in range(_MOST_LOOKS):
        saves, skipped = _look(place)
        chosen, mark = _choose(saves, step, cut_back=cut_back)
        try:
            num_dropped, changed, num_cut = _restore_from(buffer, chosen, mark, on_mismatch, iterators or {})
            break
        except (OSError, ValueError):
            # A run that goes on may remove an old save while it is read here.
            if os.path.isdir(chosen.path) or attempt == _MOST_LOOKS - 1:
                raise
            _logger.info("%s was removed while it was read; looking again", chosen.path)
    report = RestoreReport(
        path=chosen.path,
        step=chosen.step if mark is None else mark[0],
        frames=len(buffer),
        dropped=num_dropped,
        cut=num_cut,
        changed=changed,
        skipped=tuple(skipped),
        seconds=time.monotonic() - started,
    )
    _logger.info("%s", report)
    return report


def _look(place: str) -> tuple[list[SavedFolder], list[str]]:
    """The saves at a path, at least one, and what is passed over, which is told."""
    if is_save(place):
        return [open_save(place)], []
    saves, skipped = find_saves(place)
    for told in skipped:
        _logger.warning("%s: skipped %s", place, told)
    if not saves:
        others = folders_with_saves(place)
        raise FileNotFoundError(
            f"there is no complete save in {place!r}{': skipped ' + '; '.join(skipped) if skipped else ''}"
            f"{'; there are saves in ' + ', '.join(map(repr, others)) if others else ''}."
        )
    num_buffers = len({save.lineage for save in saves})
    if num_buffers > 1:
        _logger.warning(
            "%s holds saves of %d buffers, of which none was restored from another: each buffer, and each run, should "
            "have a folder of its own.",
            place,
            num_buffers,
        )
    return saves, skipped


def _restore_from(
    buffer: Restorable,
    chosen: SavedFolder,
    mark: list[Any] | None,
    on_mismatch: OnMismatch,
    iterators: Mapping[str, Any],
) -> tuple[int, dict[str, tuple[Any, Any]], int]:
    """Takes a save over, and goes back to a moment; frames without room, settings that differed, frames taken back."""
    check_iterators(chosen.path, iterators)
    with _saving(buffer):
        num_dropped, changed = _take_over(buffer, chosen.state(), on_mismatch)
        buffer._marks = [list(each) for each in chosen.manifest["marks"]]
        buffer._lineage = chosen.lineage
        buffer._saved_segments = {}
        num_cut = 0
        if mark is None:
            with contextlib.suppress(OSError):  # removed by now: the next save links nothing
                buffer._saved_segments = {
                    part: KnownFrames.of(chosen.path, segments) for part, segments in chosen.segments().items()
                }
        else:
            # Ids are given again from here on, so that no file holds those of this buffer any more.
            buffer._marks = [each for each in buffer._marks if each[0] <= mark[0]]
            num_cut = buffer._cut_back(mark[1])
        restore_iterators(chosen.path, iterators)
    return num_dropped, changed, num_cut


def get_state(buffer: Restorable) -> dict[str, Any]:
    """See `Restorable.get_state`."""
    with _saving(buffer):
        state = buffer._capture()
        try:
            return {**state_to_dict(state), "marks": [list(each) for each in buffer._marks]}
        finally:
            state.close()


def set_state(buffer: Restorable, state: Mapping[str, Any], on_mismatch: OnMismatch) -> RestoreReport:
    """See `Restorable.set_state`."""
    started = time.monotonic()
    read = state_from_dict(state)
    with _saving(buffer):
        num_dropped, changed = _take_over(buffer, read, on_mismatch)
        buffer._marks = [list(each) for each in state.get("marks", [])]
        buffer._saved_segments = {}
    return RestoreReport(
        path=None,
        step=buffer._marks[-1][0] if buffer._marks else None,
        frames=len(buffer),
        dropped=num_dropped,
        cut=0,
        changed=changed,
        skipped=(),
        seconds=time.monotonic() - started,
    )


def to_bytes(buffer: Restorable) -> bytes:
    """See `Restorable.serialize`."""
    num_bytes = buffer.stats().bytes_held or 0
    told = (
        f"a tf.train.Checkpoint takes this {type(buffer).__name__} whole, through memory, which needs some six times "
        f"its {format_bytes(num_bytes)}; Checkpoint(buffer=buffer.saved_in(folder)) streams it"
    )
    if _COPIES_IN_CHECKPOINTS * num_bytes > memory_limit():
        raise ValueError(f"{told}. This machine has {format_bytes(memory_limit())}.")
    if num_bytes > _LARGE_BYTES:
        _logger.warning("%s.", told)
    return dict_to_bytes(get_state(buffer))


def from_bytes(buffer: Restorable, content: bytes) -> None:
    """See `Restorable.deserialize`."""
    set_state(buffer, dict_from_bytes(content), "error")


def mark_step(buffer: Restorable, step: int) -> None:
    """See `Restorable.mark_step`."""
    step = _as_step(step)
    moment = buffer._moment()
    if moment is None:
        raise ValueError(
            f"mark_step: a {type(buffer).__name__} cannot be cut back to a step, because what it gave up is lost; "
            "save it at that step."
        )
    buffer._marks = _with_mark(buffer._marks, step, moment)


def _with_mark(marks: list[list[Any]], step: int, moment: Any) -> list[list[Any]]:
    """The marks with one more; where steps begin anew, or go back, those of higher steps mean nothing any more."""
    kept = [mark for mark in marks if mark[0] <= step]
    return [*kept, [step, moment]][-_MOST_MARKS:]


def _captured(
    buffer: Restorable, iterators: Mapping[str, Any] | None
) -> tuple[dict[str, IteratorState] | None, BufferState]:
    """Where iterators stand, and the buffer, as of one moment."""
    if not iterators:
        return None, buffer._capture()
    for attempt in range(_MOST_ATTEMPTS):
        # Before the frames are captured: a draw that is under way may wait for an add that waits for the save.
        num_draws = buffer._draws()
        places = states_of(iterators)
        state = buffer._capture()
        # A dataset that draws ahead stops when it is full; what it drew in between would be lost.
        if buffer._draws() == num_draws or attempt == _MOST_ATTEMPTS - 1:
            break
        state.close()
    if buffer._draws() != num_draws:
        _logger.warning(
            "%s was drawn from by another thread at all times: what was drawn between saving iterators and buffer "
            "may be missing after a restore.",
            type(buffer).__name__,
        )
    return places, state


def _check_folder(buffer: Restorable, place: str, saves: list[SaveHead]) -> None:
    """Refuses a folder that holds saves of something else, and tells of one that holds another buffer's."""
    kind = type(buffer).__name__
    for head in saves[-1:]:
        try:
            save = open_save(head.path)
        except (ValueError, OSError):  # damaged, or removed by another process by now
            continue
        told = describe_differences(save.fields, buffer._saved_fields())
        if save.kind != kind or told:
            what = f"of a {save.kind}" if save.kind != kind else f"of another data_spec ({'; '.join(told)})"
            raise ValueError(f"{place!r} holds saves {what}: give each buffer a folder of its own.")
        if save.lineage != buffer._lineage:
            _logger.warning(
                "%s holds saves of another %s, from which this one was not restored: they stay beside its own, and "
                "keep_last does not remove them. Give each buffer, and each run, its own folder, or restore first.",
                place,
                kind,
            )


def _take_over(
    buffer: Restorable, state: BufferState, on_mismatch: OnMismatch
) -> tuple[int, dict[str, tuple[Any, Any]]]:
    """Checks everything, then fills the buffer; returns how many frames had no room, and settings that differed."""
    if on_mismatch not in ("error", "resize", "keep"):
        raise ValueError(f"on_mismatch must be 'error', 'resize' or 'keep', got {on_mismatch!r}.")
    changed = check_fits(buffer, state, on_mismatch)
    target = buffer
    if changed and on_mismatch == "keep":
        if buffer._has_drawn():
            raise ValueError(
                "on_mismatch='keep': datasets were made of this buffer, or draws, which know its memory as it is. "
                "Restore before anything is drawn, or build the buffer with the stored settings."
            )
        target = buffer._rebuilt(settings_from_plain({name: stored for name, (stored, _) in changed.items()}))
    plan = target._plan_restore(state, resize=bool(changed) and on_mismatch == "resize")
    fill(plan, state)
    if target is not buffer:
        # What was put on the object later stays.
        buffer.__dict__.update(target.__dict__)
    return _sum(plan, lambda each: each.num_dropped), changed


def check_fits(buffer: Restorable, state: BufferState, on_mismatch: OnMismatch) -> dict[str, tuple[Any, Any]]:
    """Settings that differ: (stored, of the buffer), by name.

    Raises:
      ValueError: the state is of another class, of another spec, or settings differ that must not.
    """
    kind = type(buffer).__name__
    if state.kind != kind:
        raise ValueError(f"a {state.kind} was saved, and this is a {kind}: build a {state.kind}.")
    told = describe_differences(state.fields, buffer._saved_fields())
    if told:
        raise ValueError(f"data_spec differs from what was saved: {'; '.join(told)}.")
    changed = differences(state.settings, buffer._settings())
    if on_mismatch == "keep":
        functions = {name: both for name, both in changed.items() if is_opaque(both[0])}
        if functions:
            raise ValueError(
                f"on_mismatch='keep' cannot make what is no plain value: {differing(functions)}. Build the buffer with "
                "them, as the one that was saved."
            )
        return changed
    if not changed:
        return changed
    fixed = {name: both for name, both in changed.items() if name in buffer._FIXED_SETTINGS}
    if on_mismatch == "error":
        resize = "" if fixed else "'resize' (those of this buffer, and what fits) or "
        raise ValueError(
            f"settings differ from what was saved: {differing(changed)}. Build the buffer with the stored ones, or "
            f"say on_mismatch={resize}'keep' (the stored ones)."
        )
    if fixed:
        raise ValueError(
            f"on_mismatch='resize' cannot change these: {differing(fixed)}. Build the buffer with the stored ones, or "
            "say on_mismatch='keep'."
        )
    return changed


def fill(plan: RestorePlan, state: BufferState) -> None:
    """Carries a plan out.

    Raises:
      ValueError: frames are damaged; the buffer is as it was.
    """
    jobs = list(_jobs(plan, state))
    if not all(each.is_empty for each, _ in jobs):
        # What is held now is only given up for frames that are known to be sound.
        for _, inner in jobs:
            if inner.frames is not None:
                _stored(inner).check()
    locks = list({id(each.lock): each.lock for each, _ in jobs}.values())
    try:
        with _held(locks):
            for each, _ in jobs:
                each.clear()
            for each, inner in jobs:
                if inner.frames is not None:
                    _stored(inner).deliver(_writer(each, field_names(inner.fields)))
        # Now that the frames are known to be sound.
        for each, _ in jobs:
            if each.prepare is not None:
                each.prepare()
        with _held(locks):
            # Parts before the whole.
            for each, _ in reversed(jobs):
                each.finish()
    except BaseException:
        with _held(locks):
            for each, _ in jobs:
                each.clear()
        raise


@contextlib.contextmanager
def _held(locks: list[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def _jobs(plan: RestorePlan, state: BufferState) -> Iterator[tuple[RestorePlan, BufferState]]:
    yield plan, state
    for name, part in plan.parts.items():
        yield from _jobs(part, state.parts[name])


def _stored(state: BufferState) -> FrameSource:
    if state.frames is None or isinstance(state.frames.source, LiveFrames):
        raise TypeError("a state that is taken over must have been saved.")
    return state.frames.source


def _writer(plan: RestorePlan, names: list[str]) -> Callable[[slice | Array, list[Array]], None]:
    """Writes frames of a state, with fields of these names, to the rows that a plan says, where it takes them."""
    storage, wanted = plan.storage, plan.places
    if storage is None:
        raise TypeError("a plan that takes frames needs a storage.")
    # The same fields may stand in another order.
    order = [names.index(name) for name in field_names(storage.fields)]

    def put(places: slice | Array, leaves: list[Array]) -> None:
        leaves = [leaves[index] for index in order]
        if isinstance(places, slice) and isinstance(wanted, slice):
            start, stop = max(places.start, wanted.start), min(places.stop, wanted.stop)
            if start >= stop:
                return
            leaves = [leaf[start - places.start : stop - places.start] for leaf in leaves]
            index: slice | Array = slice(start - wanted.start, stop - wanted.start)
        else:
            numbers = np.arange(places.start, places.stop) if isinstance(places, slice) else places
            if isinstance(wanted, slice):
                found = numbers - wanted.start
                taken = (found >= 0) & (numbers < wanted.stop)
            else:
                found = np.searchsorted(wanted, numbers)
                taken = found < len(wanted)
                taken[taken] = wanted[found[taken]] == numbers[taken]
            if not taken.any():
                return
            index, leaves = found[taken], [leaf[taken] for leaf in leaves]
        for piece, rows in pieces_of(plan.rows, index):
            part = leaves
            if isinstance(piece, slice) and isinstance(index, slice) and piece != index:
                part = [leaf[piece.start - index.start : piece.stop - index.start] for leaf in leaves]
            storage.write_raw(rows, part)

    return put


def _sum(plan: RestorePlan, of: Callable[[RestorePlan], int]) -> int:
    return of(plan) + sum(_sum(part, of) for part in plan.parts.values())


def _choose(saves: list[SavedFolder], step: int | None, *, cut_back: bool) -> tuple[SavedFolder, list[Any] | None]:
    """The save to restore, and the moment to cut it back to."""
    if step is None:
        return saves[-1], None
    exact = [save for save in saves if save.step == step]
    if exact:
        return exact[-1], None
    older = max((save for save in saves if save.step < step), key=lambda save: (save.step, save.order), default=None)
    newer = min((save for save in saves if save.step > step), key=lambda save: (save.step, -save.order), default=None)
    if cut_back and newer is not None:
        known = [mark for mark in newer.manifest["marks"] if mark[0] <= step and mark[1] is not None]
        if known and (older is None or known[-1][0] > older.step):
            if known[-1][0] < step:
                _warn(
                    f"the buffer is cut back to step {known[-1][0]}, the last moment before step {step} that the save "
                    f"of step {newer.step} knows: what was added in between is left out (mark_step)."
                )
            return newer, known[-1]
        if older is None:
            raise ValueError(
                f"{newer.path!r}, of step {newer.step}, cannot be cut back to step {step}: it knows no moment at or "
                "before it. Say mark_step() while training, or take cut_back=False."
            )
    if older is not None:
        _warn(
            f"the buffer was saved at step {older.step}, and is restored for step {step}: what was added in these "
            f"{step - older.step} steps is not in it."
        )
        return older, None
    assert newer is not None  # there is at least one save
    _warn(
        f"the buffer was saved at step {newer.step}, and is restored for step {step}: it holds what was added in "
        f"{newer.step - step} steps that the model has not seen. cut_back=True leaves that out where it can."
    )
    return newer, None


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)


@contextlib.contextmanager
def _saving(buffer: Restorable) -> Iterator[None]:
    """One save or restore of a buffer at a time; says what it waits for."""
    while not buffer._save_lock.acquire(timeout=_TELL_EVERY_S):
        _logger.warning("waiting: another thread is saving or restoring this %s", type(buffer).__name__)
    lock = buffer._save_lock
    try:
        yield
    finally:
        lock.release()


def _as_step(step: Any) -> int:
    value = step.numpy() if isinstance(step, tf.Variable) else step
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"step must be an int, got {step!r}.")
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"step must be at least 0, got {step!r}.")
    return number


def _local(path: str | os.PathLike[str]) -> str:
    text = os.fsdecode(path)
    if "://" in text:
        raise ValueError(f"path must be of this machine, got {text!r}; save to a disk, and copy the folder.")
    return text
