"""What a server with checkpoints tells its clients, on whatever machine they are, and what they tell it.

Reverb's own answer to a client that asks for a checkpoint is the path on the server, and nothing can go with the
question. So such a server has one more table, with one item: its data is a text of what the server says of itself and
of its checkpoints, and its priority is the step that a trainer has last told, plus 1; 0: none yet.
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
    """

    checkpoint_dir: str
    started_from: str | None
    started_step: int | None
    last: CheckpointReport | None = None
    problem: str | None = None


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


def write_status(client: Any, status: ServerStatus, step: int | None) -> None:
    """Puts what the server says into its table, in place of what was there.

    Args:
      client: a `reverb.Client`.
      status: what it says.
      step: what the trainer has last told.
    """
    text = json.dumps(dataclasses.asdict(status)).encode()
    with client.trajectory_writer(1) as writer:
        writer.append({"status": np.frombuffer(text, np.uint8)})
        writer.create_item(CONTROL_TABLE, _priority_of(step), {"status": writer.history["status"][-1:]})
        writer.flush()


def read_status(client: Any) -> tuple[int, ServerStatus, int | None]:
    """The item's key, what the server says, and the step last told. It waits for ever where there is no item."""
    sample = next(iter(client.sample(CONTROL_TABLE, num_samples=1, emit_timesteps=False)))
    plain = json.loads(np.asarray(sample.data[0]).tobytes())
    last = plain.pop("last")
    status = ServerStatus(last=None if last is None else CheckpointReport(**last), **plain)
    return int(sample.info.key), status, step_of(float(sample.info.priority))


def tell_step(client: Any, key: int, step: int | None) -> None:
    """Tells the server the trainer's step.

    Args:
      client: a `reverb.Client`.
      key: of the item, from `read_status`.
      step: at least 0; None: none.
    """
    client.mutate_priorities(CONTROL_TABLE, updates={key: _priority_of(step)})


def step_of(priority: float | None) -> int | None:
    """The step that an item's priority tells."""
    return None if not priority else int(priority) - 1


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


def _priority_of(step: int | None) -> float:
    return 0.0 if step is None else float(step) + 1.0
