"""Loads reverb when a class that needs it is built, and says in one sentence why it cannot."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

_NEEDED_REVERB = "0.14.0"
_NEEDED_TENSORFLOW = "2.15"


def load_reverb() -> Any:
    """The `reverb` module.

    Raises:
      ImportError: reverb is absent, or does not fit the installed TensorFlow; one sentence with
        the versions that were found and that are needed.

    >>> load_reverb().__name__
    'reverb'
    """
    try:
        import reverb
    except Exception as error:  # an undefined symbol, a wrong protobuf, an assertion of its own: all mean the same
        raise ImportError(_explain(_version("dm-reverb"), _version("tensorflow"))) from error
    return reverb


def load_pybind() -> Any:
    """Reverb's C++ classes.

    `reverb.TrajectoryWriter` walks the nest and keeps Python objects for every column of every step;
    the class below it takes a flat list. Measured on 64 streams of 168 bytes: 10,000 against 70,000
    frames/s.

    Raises:
      ImportError: as `load_reverb`.
    """
    load_reverb()
    from reverb import pybind

    return pybind


def load_grpc() -> Any:
    """The `grpc` module, which TensorFlow asks for."""
    return importlib.import_module("grpc")


def load_descriptor() -> Any:
    """The module that describes protocol buffers."""
    return importlib.import_module("google.protobuf.descriptor_pb2")


def make_messages(file: Any, names: Sequence[str]) -> dict[str, Any]:
    """Message classes of a protocol buffers file that imports Reverb's schema.

    Args:
      file: its `FileDescriptorProto`.
      names: of its messages.
    """
    load_reverb()
    pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
    added: set[str] = set()

    def add(found: Any) -> None:
        """A file and those it imports, which may import the same ones."""
        for needed in found.dependencies:
            add(needed)
        if found.name not in added:
            added.add(found.name)
            copied = load_descriptor().FileDescriptorProto()
            found.CopyToProto(copied)
            pool.Add(copied)

    add(load_schema().DESCRIPTOR)
    pool.Add(file)
    factory = importlib.import_module("google.protobuf.message_factory")
    return {name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}")) for name in names}


def load_schema() -> Any:
    """The module of the messages that Reverb stores.

    Raises:
      ImportError: as `load_reverb`.
    """
    load_reverb()
    from reverb.cc import schema_pb2

    return schema_pb2


def load_checkpoint_schema() -> Any:
    """The module of the messages in a checkpoint's `tables.tfrecord`.

    Raises:
      ImportError: as `load_reverb`.
    """
    load_reverb()
    from reverb.cc.checkpointing import checkpoint_pb2

    return checkpoint_pb2


def load_types() -> Any:
    """The module that has Reverb's `TableInfo`.

    Raises:
      ImportError: as `load_reverb`.
    """
    load_reverb()
    from reverb import reverb_types

    return reverb_types


def _explain(reverb: str | None, tensorflow: str | None) -> str:
    found = f"found dm-reverb {reverb or '(not installed)'} and tensorflow {tensorflow or '(not installed)'}"
    return (
        f"Reverb buffers need dm-reverb {_NEEDED_REVERB} (Linux x86-64, CPython 3.10 or 3.11) with tensorflow "
        f"{_NEEDED_TENSORFLOW}.x: {found}; install 'replayfeed' with its pinned versions, or use TFUniformReplayBuffer."
    )


def _version(distribution: str) -> str | None:
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
