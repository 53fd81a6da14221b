"""Opens a table of a running server without being told what its frames hold: the table tells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from replayfeed.buffers import ReverbEpisodicReplayBuffer, ReverbReplayBuffer
from replayfeed.buffers.nests import Nest
from replayfeed.buffers.reverb_items import WholeEpisodes, kind_from
from replayfeed.buffers.reverb_layout import packed_signature
from replayfeed.buffers.reverb_served import open_link
from replayfeed.buffers.spec import DataSpec

_TRAJECTORY = ("step_type", "observation", "action", "policy_info", "next_step_type", "reward", "discount")


def open_served(
    address: str, table: str, *, timeout_s: float = 10.0
) -> ReverbReplayBuffer | ReverbEpisodicReplayBuffer:
    """The buffer of a table that a `TableConfig` of this package made.

    Args:
      address: `host:port`.
      table: its name.
      timeout_s: how long to wait for the server.

    Raises:
      ImportError: Reverb cannot be imported.
      WaitTimeoutError: the server does not answer.
      ValueError: there is no such table, or it does not tell what its frames hold.

    >>> from replayfeed.buffers import ReplayServer, TableConfig
    >>> spec = {"observation": tf.TensorSpec([2], tf.float32), "is_last": tf.TensorSpec([], tf.bool)}
    >>> with ReplayServer([TableConfig("replay", spec, 100, scannable=True)]) as server:
    ...     buffer = open_served(server.address, "replay")
    ...     print(buffer.data_spec["observation"])
    ...     buffer.close()
    TensorSpec(shape=(2,), dtype=tf.float32, name=None)
    """
    link = open_link(table, address, None, timeout_s=timeout_s, log_interval_s=timeout_s)
    try:
        about = packed_signature(link.first_info.signature, table)
    finally:
        link.end_waits()
    if about is None:
        raise ValueError(
            f"table {table!r} at {address} has plain columns, so it cannot be read in order without taking anything "
            "out of it: it was not made by a TableConfig with scannable=True."
        )
    if about["table"].get("agents") is not None:
        raise ValueError(f"table {table!r} at {address} holds many agents: write it with write_rlds(buffer, ...).")
    data_spec = spec_from_fields(table, about["fields"])
    if isinstance(kind_from(about["items"]), WholeEpisodes):
        return ReverbEpisodicReplayBuffer(data_spec, table, address, timeout_s=timeout_s)
    return ReverbReplayBuffer(data_spec, table, None, address, timeout_s=timeout_s)


def spec_from_fields(table: str, fields: Sequence[tuple[str, Sequence[int], str]]) -> Nest:
    """A `data_spec` whose fields are these, in this order: a table keeps their paths, and not in what they are nested.

    Args:
      table: its name, for messages.
      fields: path, shape and dtype of each.

    Raises:
      ValueError: no nest of dicts, tuples and TF-Agents' `Trajectory` has these fields in this order.

    >>> spec = spec_from_fields("mine", [("observation/image", [2], "uint8"), ("reward", [], "float32")])
    >>> spec["observation"]["image"]
    TensorSpec(shape=(2,), dtype=tf.uint8, name=None)
    """
    paths = [path for path, _, _ in fields]
    specs = {path: tf.TensorSpec(shape, tf.as_dtype(dtype)) for path, shape, dtype in fields}
    for candidate in _candidates(specs):
        if [field.path for field in DataSpec(candidate).fields] == paths:
            return candidate
    raise ValueError(
        f"table {table!r} does not tell how its fields {paths} are nested: write it with write_rlds(buffer, ...), "
        "from a buffer that is given the data_spec."
    )


def _candidates(specs: Mapping[str, tf.TensorSpec]) -> Iterator[Nest]:
    if list(specs) == [""]:
        yield specs[""]
        return
    nested: dict[str, Any] = {}
    for path, spec in specs.items():
        place = nested
        *keys, last = path.split("/")
        for key in keys:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                break
        else:
            place[last] = spec
    nested = {key: _with_tuples(value) for key, value in nested.items()}
    if set(nested) <= set(_TRAJECTORY) and {"step_type", "next_step_type"} <= set(nested):
        from tf_agents.trajectories.trajectory import Trajectory

        yield Trajectory(*(nested.get(field, ()) for field in _TRAJECTORY))
    yield nested
    # Keys that hold a slash themselves.
    yield dict(specs)


def _with_tuples(nest: Nest) -> Nest:
    """Tuples for dicts whose keys are `'0'`, `'1'`, ..."""
    if not isinstance(nest, dict):
        return nest
    children = {key: _with_tuples(value) for key, value in nest.items()}
    if list(children) == [str(index) for index in range(len(children))]:
        return tuple(children.values())
    return children
