"""Where iterators over datasets stand: saved, and restored so that they go on with the very next element.

What waits in a dataset is part of it: batches that were drawn ahead, the rest of a block of windows, the order of the
pass under way, what a `.shuffle` of the user holds. So the elements after a restore are those that would have come,
also where frames were added between a draw and the save, and a pass skips and repeats nothing. Saving reads the
iterator and changes nothing in it; datasets whose iterators are never saved pay nothing.

The other way of TensorFlow, `tf.data.Options.experimental_symbolic_checkpoint`, keeps positions only and draws anew
what waited: from other contents, and it costs something at each element of every dataset.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import tensorflow as tf

from .saved_files import FileRecord, NewFiles, check_size, read_bytes

_INDEX = "iterators.json"
_FORMAT = "replayfeed iterators"
_VERSION = 1

# `external_state_policy` of `SerializeIterator`: what callbacks of ours change is in the buffer's own state.
_IGNORE = 1

_TELL_EVERY_S = 5.0

# How long each part of a state is.
_LENGTH = struct.Struct("<Q")

_Result = TypeVar("_Result")

_logger = logging.getLogger(__name__)


@runtime_checkable
class ResourceIterator(Protocol):
    """An iterator that is no `tf.data.Iterator` and runs one of TensorFlow's all the same.

    Attributes:
      iterator_resource: its handle, as of `tf.raw_ops.AnonymousIteratorV3`.
      element_spec: of its elements.
    """

    iterator_resource: tf.Tensor
    element_spec: Any


class SavedIterator(tf.train.experimental.PythonState):
    """An iterator as a part of a `tf.train.Checkpoint`, beside a model and the buffer.

    `iter(dataset)` itself cannot be one where the dataset reads live memory. What waits in the dataset is part of it;
    the iterator to restore into is made by the same calls as the saved one. Random ops and Python code in maps of your
    own are not part of it. Not for datasets of served buffers, whose contents are elsewhere: random ones are refused,
    and a pass would begin from another scan. Where draws use windows up (`max_times_sampled`) buffer and iterator have
    to be saved as of one moment: `save(iterators=)`, or `saved_in(folder, iterators=)` in a checkpoint.

    Args:
      iterator: over a dataset: `iter(buffer.as_dataset(...))`.

    Raises:
      TypeError: it is no iterator over a dataset.

    >>> import tempfile
    >>> numbers = iter(tf.data.Dataset.range(9).shuffle(9, seed=1).prefetch(3))
    >>> _ = next(numbers), next(numbers)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = tf.train.Checkpoint(numbers=SavedIterator(numbers)).write(folder + "/checkpoint")
    ...     first = [int(number) for number in numbers]
    ...     _ = tf.train.Checkpoint(numbers=SavedIterator(numbers)).read(path).assert_consumed()
    ...     first == [int(number) for number in numbers]
    True
    """

    def __init__(self, iterator: Any) -> None:
        _handle("iterator", iterator)
        self._iterator = iterator

    def serialize(self) -> bytes:
        """Called by TensorFlow when it saves.

        Raises:
          ValueError, TimeoutError: as `write_iterators`.
        """
        return _state_of("iterator", self._iterator, timeout_s=60.0)

    def deserialize(self, string_value: bytes) -> None:
        """Called by TensorFlow when it restores.

        Raises:
          ValueError: it was saved from another dataset, or is damaged. The iterator stays where it is.
        """
        _set_state("iterator", self._iterator, string_value, tf.__version__)


class IteratorState(NamedTuple):
    """Where an iterator stands.

    Attributes:
      content: as TensorFlow serialises it.
      elements: what its elements are.
    """

    content: bytes
    elements: str


def states_of(iterators: Mapping[str, Any], *, timeout_s: float = 60.0) -> dict[str, IteratorState]:
    """Where these iterators stand now, by name, for `write_iterators`.

    It waits for draws that are under way: the caller holds nothing that a draw may wait for.

    Args:
      iterators: by name, as `iter(dataset)` made them.
      timeout_s: how long to wait for each: while the dataset of one waits for data, it cannot be read.

    Raises:
      TypeError: one is no iterator over a dataset.
      ValueError: one cannot be saved: its place is in Python code (`from_generator`) or in a server.
      TimeoutError: one did not answer in time.
    """
    if not isinstance(iterators, Mapping):
        raise TypeError(f"iterators must be a mapping of names to iterators, got {type(iterators).__name__}.")
    for name, iterator in iterators.items():
        _handle(name, iterator)
    return {
        name: IteratorState(_state_of(name, iterator, timeout_s=timeout_s), _elements(iterator))
        for name, iterator in iterators.items()
    }


def write_iterators(folder: str, states: Mapping[str, IteratorState]) -> list[str]:
    """Writes where iterators stood into a folder, which has no such files yet, and returns their names.

    >>> import tempfile
    >>> numbers = iter(tf.data.Dataset.range(9))
    >>> _ = next(numbers), next(numbers)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     names = write_iterators(folder, states_of({"numbers": numbers}))
    ...     again = iter(tf.data.Dataset.range(9))
    ...     restore_iterators(folder, {"numbers": again})
    >>> names, int(next(again))
    (['iterators.0.state', 'iterators.json'], 2)
    """
    known: dict[str, Any] = {}
    with NewFiles(folder) as files:
        for index, (name, state) in enumerate(states.items()):
            record = files.write_bytes(f"iterators.{index}.state", state.content)
            known[name] = {"file": record.to_plain(), "elements": state.elements}
        content = {"format": _FORMAT, "version": _VERSION, "tensorflow": tf.__version__, "iterators": known}
        files.write_bytes(_INDEX, json.dumps(content).encode())
        files.wait()
    return [*(plain["file"][0] for plain in known.values()), _INDEX]


def check_iterators(folder: str, iterators: Mapping[str, Any]) -> None:
    """Refuses what `restore_iterators` would refuse, but for files and datasets that only TensorFlow can judge.

    Raises:
      TypeError, ValueError: as `restore_iterators`.
    """
    if not isinstance(iterators, Mapping):
        raise TypeError(f"iterators must be a mapping of names to iterators, got {type(iterators).__name__}.")
    if iterators:
        _known(folder, iterators)


def restore_iterators(folder: str, iterators: Mapping[str, Any]) -> None:
    """Iterators go on where those stood that `write_iterators` wrote into the folder.

    Each belongs to a dataset made by the same calls as the saved one, in this process or another. With none, nothing is
    read: a buffer can be restored without them.

    Args:
      folder: what `write_iterators` was given.
      iterators: by name, the same names.

    Raises:
      TypeError: one is no iterator over a dataset.
      ValueError: the names are not those that were saved; the message has both.
      ValueError: elements of one differ from those of the saved one in structure, shape or dtype.
      ValueError: a file is missing or damaged, or was written by a later version of this package.
      ValueError: one belongs to a dataset made by other calls. It stays where it is; those before it were restored.
    """
    if not iterators:
        return
    known, version = _known(folder, iterators)
    states = {name: read_bytes(folder, record) for name, record in known.items()}
    for name, iterator in iterators.items():
        _set_state(name, iterator, states[name], version)


def _known(folder: str, iterators: Mapping[str, Any]) -> tuple[dict[str, FileRecord], str]:
    """The files of the iterators' states, all there, and the version of TensorFlow that wrote them."""
    for name, iterator in iterators.items():
        _handle(name, iterator)
    path = os.path.join(folder, _INDEX)
    if not os.path.exists(path):
        raise ValueError(
            f"no iterators were saved in {folder!r}, and {_names(iterators)} asked for: pass iterators= to save too, "
            "or leave it out here."
        )
    with open(path, "rb") as file:
        content = json.loads(file.read())
    if content.get("format") != _FORMAT or content.get("version", 0) > _VERSION:
        raise ValueError(
            f"{path!r} has format {content.get('format')!r} version {content.get('version')!r}; this package reads "
            f"{_FORMAT!r} up to {_VERSION}: update it."
        )
    saved = content["iterators"]
    if set(saved) != set(iterators):
        raise ValueError(
            f"iterators {_names(saved)} were saved in {folder!r}, and {_names(iterators)} asked for: give the same "
            "names."
        )
    records = {}
    for name, plain in saved.items():
        found = _elements(iterators[name])
        if found != plain["elements"]:
            raise ValueError(
                f"iterator {name!r} was saved with elements {plain['elements']}, and has {found}: make its dataset by "
                "the same calls."
            )
        records[name] = FileRecord.from_plain(plain["file"])
        check_size(folder, records[name])
    return records, content["tensorflow"]


def _names(iterators: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, sorted(iterators))) or "none"


def _elements(iterator: Any) -> str:
    """The elements of an iterator in words: structure, shapes and dtypes."""

    def describe(spec: Any) -> str:
        return f"{spec.shape} {spec.dtype.name}" if type(spec) is tf.TensorSpec else repr(spec)

    return repr(tf.nest.map_structure(describe, iterator.element_spec))


def _handle(name: str, iterator: Any) -> tf.Tensor:
    """The resource of an iterator."""
    if isinstance(iterator, ResourceIterator):
        return iterator.iterator_resource
    if isinstance(iterator, tf.data.Iterator):
        leaves = tf.nest.flatten(iterator, expand_composites=True)
        if len(leaves) == 1 and getattr(leaves[0], "dtype", None) == tf.resource:
            return leaves[0]
    raise TypeError(
        f"iterator {name!r} must be an iterator over a tf.data.Dataset, as iter(dataset) makes it outside of a "
        f"tf.function, got {type(iterator).__name__}."
    )


def _state_of(name: str, iterator: Any, *, timeout_s: float) -> bytes:
    """The state of an iterator: parts, each as its length, 8 bytes, and a `TensorProto`."""
    handle = _handle(name, iterator)

    def read() -> bytes:
        parts = tf.raw_ops.SerializeIterator(resource_handle=handle, external_state_policy=_IGNORE)
        # One by one, because TensorFlow dies of a proto of 2 GB; each of them holds one element at most.
        protos = [tf.io.serialize_tensor(part).numpy() for part in tf.unstack(parts)]
        return b"".join(each for proto in protos for each in (_LENGTH.pack(len(proto)), proto))

    try:
        return _in_time(read, f"the dataset of iterator {name!r}", timeout_s)
    except tf.errors.UnimplementedError as error:
        raise ValueError(
            f"iterator {name!r} cannot be saved: {_told(error)} What its dataset is made of keeps its place in Python "
            "code (from_generator) or in a server (Reverb): leave this iterator out and make a new one after a restore."
        ) from error
    except tf.errors.OpError as error:
        raise ValueError(f"iterator {name!r} cannot be saved: {_told(error)}") from error


def _set_state(name: str, iterator: Any, state: bytes, version: str) -> None:
    try:
        parts = tf.stack([tf.io.parse_tensor(proto, tf.variant) for proto in _protos(name, state)])
        tf.raw_ops.DeserializeIterator(resource_handle=_handle(name, iterator), serialized=parts)
    except tf.errors.OpError as error:
        other = (
            "" if version == tf.__version__ else f" It was saved by TensorFlow {version}, and this is {tf.__version__}."
        )
        raise ValueError(
            f"iterator {name!r} does not fit what was saved ({_told(error)}): make its dataset by the same calls as "
            f"the saved one.{other}"
        ) from error


def _protos(name: str, state: bytes) -> list[bytes]:
    """The parts that `_state_of` joined.

    Raises:
      ValueError: it did not join these.
    """
    protos, start = [], 0
    while start < len(state):
        end = start + _LENGTH.size
        if end <= len(state):
            (length,) = _LENGTH.unpack(state[start:end])
            start, end = end, end + length
        if end > len(state):
            raise ValueError(f"the state of iterator {name!r} is damaged: {len(state)} bytes, which end in a part.")
        protos.append(bytes(state[start:end]))
        start = end
    if not protos:
        raise ValueError(f"the state of iterator {name!r} is empty.")
    return protos


def _told(error: tf.errors.OpError) -> str:
    """What TensorFlow says, without the names of its nodes."""
    return str(error.message).split("}} ")[-1].split(" [Op:")[0]


def _in_time(work: Callable[[], _Result], what: str, timeout_s: float) -> _Result:
    """The result of `work`, which may wait for ever.

    Raises:
      TimeoutError: it does.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # handed to the caller below
            errors.append(error)

    started = time.monotonic()
    thread = threading.Thread(target=run, name="save an iterator", daemon=True)
    thread.start()
    while thread.is_alive():
        waited = time.monotonic() - started
        if waited >= timeout_s:
            raise TimeoutError(
                f"{what} did not tell its place within {timeout_s:g} s: it waits for data. Save when there is some, or "
                "leave the iterator out."
            )
        thread.join(min(_TELL_EVERY_S, timeout_s - waited))
        if thread.is_alive():
            _logger.warning("save: waiting for %s for %.0f s, which waits for data.", what, time.monotonic() - started)
    if errors:
        raise errors[0]
    return results[0]
