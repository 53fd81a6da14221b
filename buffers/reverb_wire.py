"""Calls of a Reverb server that Reverb's Python does not offer: items with keys of our own, and the top of a heap.

Each `CreateItem` of Reverb's writers draws a random key, so that one item has other keys in each table, which nobody
is told before it draws the item; and tables cannot be searched. A second table that is to be updated with the first
one needs keys that are known. The server takes any key; here it is asked over gRPC, by the protocol of
reverb 0.14 (`reverb/cc/reverb_service.proto`).
"""

from __future__ import annotations

import functools
import queue
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .nests import Array
from .reverb_import import load_descriptor, load_grpc, load_schema, make_messages

_SERVICE = "/deepmind.reverb.ReverbService/"
_CHUNK_KEY = 1
_UINT8 = 4  # tensorflow.DataType.DT_UINT8
# Of protocol buffers: a field's number and kind.
_ITEMS_TAG, _KEY_TAG, _PRIORITY_TAG = b"\x12", b"\x08", 0x29
_KEY_BYTES = 10


class ItemStream:
    """One stream of items `(key, priority)` without data into some tables; not for several threads.

    Inserting a key that a table holds sets its priority.

    Args:
      channel: of gRPC, to the server.
      tables: the tables; each gets every item.
    """

    def __init__(self, channel: Any, tables: Sequence[str]) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        messages = _messages()
        insert = channel.stream_stream(
            _SERVICE + "InsertStream",
            request_serializer=lambda request: request,
            response_deserializer=messages["InsertStreamResponse"].FromString,
        )
        self._responses = insert(iter(self._requests.get, None))
        request = messages["InsertStreamRequest"]
        # What is the same in all items of a table.
        self._items = []
        for table in tables:
            item = request().items.add(table=table)
            item.flat_trajectory.columns.add().chunk_slices.add(chunk_key=_CHUNK_KEY, length=1)
            self._items.append(item.SerializeToString())
        # An item must have data: all of them have this chunk, which the server keeps once.
        first = request()
        chunk = first.chunks.add(chunk_key=_CHUNK_KEY, data_tensors_len=1, data_uncompressed_size=1)
        chunk.sequence_range.episode_id = 1
        chunk.data.tensors.add(dtype=_UINT8)
        self._chunks = first.SerializeToString()
        self._keep = request(keep_chunk_keys=[_CHUNK_KEY]).SerializeToString()

    def insert(self, keys: Array, priorities: Sequence[Array]) -> None:
        """Returns when the server has confirmed the items.

        Args:
          keys: uint64 `[n]`.
          priorities: for each table those of the keys, float64 `[n]`.

        Raises:
          grpc.RpcError: the connection broke; whether all are inserted is not known.
        """
        items = [_encode(item, keys, given) for item, given in zip(self._items, priorities, strict=True)]
        self._requests.put(b"".join([self._chunks, *items, self._keep]))
        self._chunks = b""
        missing = len(keys) * len(items)
        while missing > 0:
            missing -= len(next(self._responses).keys)

    def close(self) -> None:
        """Ends the stream."""
        self._requests.put(None)
        self._responses.cancel()


def _encode(item: bytes, keys: Array, priorities: Array) -> bytes:
    """The field `items` of an `InsertStreamRequest`: each as `item`, with its key and priority.

    Message objects take ten times as long. All items have the same number of bytes, since a key is written with ten,
    as many as the largest needs.

    >>> _encode(b"", np.array([3], np.uint64), np.array([1.0])).hex()
    '1214088380808080808080800029000000000000f03f'
    """
    head = item + _KEY_TAG
    size = len(head) + _KEY_BYTES + 9
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    head = _ITEMS_TAG + length + head
    encoded = np.empty((len(keys), len(head) + _KEY_BYTES + 9), np.uint8)
    encoded[:, : len(head)] = np.frombuffer(head, np.uint8)
    groups = (keys[:, None] >> np.arange(0, 7 * _KEY_BYTES, 7, dtype=np.uint64)) & np.uint64(127)
    groups[:, :-1] |= np.uint64(128)
    encoded[:, len(head) : len(head) + _KEY_BYTES] = groups
    encoded[:, -9] = _PRIORITY_TAG
    encoded[:, -8:] = np.ascontiguousarray(priorities, "<f8").view(np.uint8).reshape(-1, 8)
    return encoded.tobytes()


def top_priority(channel: Any, table: str, timeout_s: float) -> float | None:
    """The priority of the item that a table's sampler draws; None where the table is empty.

    Raises:
      grpc.RpcError: the server does not answer within `timeout_s`, or has no such table.
    """
    request, response = _messages()["SampleStreamRequest"], _messages()["SampleStreamResponse"]
    sample = channel.stream_stream(
        _SERVICE + "SampleStream",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    asked = request(table=table, num_samples=1)
    asked.rate_limiter_timeout.milliseconds = 1  # 0 is for ever
    answers: Iterator[Any] = sample(iter([asked]), timeout=timeout_s)
    try:
        return float(next(answers).entries[0].info.item.priority)
    except load_grpc().RpcError as error:
        # The table's own timeout, of 1 ms, has the same code as that of the call, and comes much sooner.
        if error.code() is load_grpc().StatusCode.DEADLINE_EXCEEDED and "Rate Limiter" in (error.details() or ""):
            return None
        raise
    finally:
        answers.cancel()  # type: ignore[attr-defined]


def open_channel(address: str) -> Any:
    """A gRPC channel to a server, for `ItemStream` and `top_priority`."""
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return load_grpc().insecure_channel(address, options=unlimited)


@functools.cache
def _messages() -> dict[str, Any]:
    """The message classes of Reverb's service that are needed here: its wheel has the schema's, but not these."""
    descriptor = load_descriptor()
    field, file = descriptor.FieldDescriptorProto, descriptor.FileDescriptorProto()
    file.name, file.package, file.syntax = "replayfeed/reverb_service.proto", "replayfeed", "proto3"
    file.dependency.append(load_schema().DESCRIPTOR.name)
    messages: dict[str, list[tuple[str, int, int, bool, str | None]]] = {
        "InsertStreamRequest": [
            ("chunks", 1, field.TYPE_MESSAGE, True, ".deepmind.reverb.ChunkData"),
            ("items", 2, field.TYPE_MESSAGE, True, ".deepmind.reverb.PrioritizedItem"),
            ("keep_chunk_keys", 3, field.TYPE_UINT64, True, None),
        ],
        "InsertStreamResponse": [("keys", 1, field.TYPE_UINT64, True, None)],
        "SampleStreamRequest": [
            ("table", 1, field.TYPE_STRING, False, None),
            ("num_samples", 2, field.TYPE_INT64, False, None),
            ("rate_limiter_timeout", 3, field.TYPE_MESSAGE, False, ".deepmind.reverb.Timeout"),
        ],
        "SampleEntry": [("info", 1, field.TYPE_MESSAGE, False, ".deepmind.reverb.SampleInfo")],
        "SampleStreamResponse": [("entries", 1, field.TYPE_MESSAGE, True, ".replayfeed.SampleEntry")],
    }
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for called, number, kind, repeated, of in fields:
            label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            message.field.add(name=called, number=number, type=kind, label=label, type_name=of)
    return make_messages(file, list(messages))
