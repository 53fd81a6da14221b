"""What a server with checkpoints tells its clients, on whatever machine they are, and what they tell it.

Reverb's own answer to a client that asks for a checkpoint is the path on the server, and nothing can go with the
question. So such a server has one more table, with one item: its data is a text of what the server says of itself and
of its checkpoints, and its priority is the step that a trainer has last told, plus 1; 0: none yet. A client that wants
a checkpoint asks by the priority's sign: the server takes one after the other, whoever asks, where Reverb's own call
deletes what another one is writing. Priority and data can be overwritten by others at any moment: whoever asks looks
again until it is told.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .reverb_import import load_reverb

CONTROL_TABLE = "replayfeed__server"
# Beyond it a float64 does not hold every whole number.
MAX_STEP = 2**53 - 2


@dataclasses.dataclass(frozen=True)
class CheckpointReport:
    """What came of a checkpoint.

    Attributes:
      path: its folder, on the server's machine.
      step: what the trainer said; None: nothing.
      items: items by table.
      num_bytes: on the disk.
      seconds: that it took.

    >>> CheckpointReport("/data/2026-01-01T00:00:00+00:00", 7, {"replay": 3}, 500, 0.1).items
    {'replay': 3}
    """

    path: str
    step: int | None
    items: Mapping[str, int]
    num_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class ServerStatus:
    """What a server says of itself.

    Attributes:
      checkpoint_dir: where it writes checkpoints, on its machine.
      started_from: the checkpoint that it was started from; None: it began empty.
      started_step: that checkpoint's step.
      last: the newest checkpoint that it has taken; None: none yet.
      problem: why the newest attempt failed; None: it did not.
      begun: the number of the attempt that was begun last; numbers grow.
      begun_step: that attempt's step.
      is_writing: that attempt is not at its end.
      failed: the number of the attempt that failed last; 0: none.
      done: the last attempts that became checkpoints, by number.
    """

    checkpoint_dir: str
    started_from: str | None
    started_step: int | None
    last: CheckpointReport | None = None
    problem: str | None = None
    begun: int = 0
    begun_step: int | None = None
    is_writing: bool = False
    failed: int = 0
    done: tuple[tuple[int, CheckpointReport], ...] = ()


@dataclasses.dataclass(frozen=True)
class Told:
    """What is in the table.

    Attributes:
      key: the item's.
      status: what the server says.
      step: what the trainer has last told.
      is_asked: a client wants a checkpoint, and none is begun.
    """

    key: int
    status: ServerStatus
    step: int | None
    is_asked: bool


def control_table() -> Any:
    """The `reverb.Table`."""
    reverb = load_reverb()
    return reverb.Table(
        name=CONTROL_TABLE,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )


def write_status(client: Any, status: ServerStatus, step: int | None, *, is_asked: bool = False) -> None:
    """Puts what the server says into its table, in place of what was there.

    Args:
      client: a `reverb.Client`.
      status: what it says.
      step: what the trainer has last told.
      is_asked: a client wants a checkpoint, still.
    """
    text = json.dumps(dataclasses.asdict(status)).encode()
    with client.trajectory_writer(1) as writer:
        writer.append({"status": np.frombuffer(text, np.uint8)})
        writer.create_item(CONTROL_TABLE, _priority_of(step, is_asked), {"status": writer.history["status"][-1:]})
        writer.flush()


def read_status(client: Any) -> Told:
    """What is in the table. It waits for ever where there is no item."""
    sample = next(iter(client.sample(CONTROL_TABLE, num_samples=1, emit_timesteps=False)))
    plain = json.loads(np.asarray(sample.data[0]).tobytes())
    last = plain.pop("last")
    done = tuple((number, CheckpointReport(**report)) for number, report in plain.pop("done"))
    status = ServerStatus(last=None if last is None else CheckpointReport(**last), done=done, **plain)
    priority = float(sample.info.priority)
    return Told(int(sample.info.key), status, step_of(priority), is_asked(priority))


def tell_step(client: Any, key: int, step: int | None, *, is_asked: bool) -> None:
    """Tells the server the trainer's step.

    Args:
      client: a `reverb.Client`.
      key: of the item, from `read_status`.
      step: at least 0; None: none.
      is_asked: a checkpoint is wanted.
    """
    client.mutate_priorities(CONTROL_TABLE, updates={key: _priority_of(step, is_asked)})


def step_of(priority: float | None) -> int | None:
    """The step that an item's priority tells.

    >>> step_of(0.0), step_of(8.0), step_of(-1.0), step_of(-9.0)
    (None, 7, None, 7)
    """
    if priority is None:
        return None
    told = int(priority) if priority >= 0 else -int(priority) - 1
    return told - 1 if told else None


def is_asked(priority: float | None) -> bool:
    """Whether an item's priority tells that a client wants a checkpoint."""
    return priority is not None and priority < 0


def check_step(step: int | None) -> None:
    """Refuses what is no step.

    Raises:
      TypeError: it is no int.
      ValueError: it is negative, or above 2^53 - 2.
    """
    if step is None:
        return
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"step must be an int or None, got {step!r}.")
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"step must be 0 to 2^53 - 2, got {step!r}.")


def _priority_of(step: int | None, is_asked: bool) -> float:
    told = 0.0 if step is None else float(step) + 1.0
    return -1.0 - told if is_asked else told
