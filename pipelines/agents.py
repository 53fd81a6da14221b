"""One agent's view of samples of many agents in lockstep."""

from __future__ import annotations

from replayfeed.buffers import BufferInfo

from .sample_windows import Transform


def of_agent(agent: str) -> Transform:
    """A function of `(items, info)` of a lockstep sample that gives those of one agent.

    What a `MultiAgentReplayBuffer` in lockstep draws becomes what a buffer of that agent alone would give: its items,
    and `info` with its mask. `n_step`, `stack_frames` and all other transforms work on it.

    Args:
      agent: whose.

    Raises:
      ValueError: when it is called: the items are not by agent, or have no such agent.

    >>> import tensorflow as tf
    >>> info = BufferInfo([7], [1.0], [7], [1.0], {"a": [True], "b": [False]})
    >>> items, info = of_agent("b")({"a": [1], "b": [0]}, info)
    >>> items, info.mask
    ([0], [False])
    """

    def view(items: object, info: BufferInfo) -> tuple[object, BufferInfo]:
        if not isinstance(items, dict) or not isinstance(info.mask, dict):
            raise ValueError(f"of_agent({agent!r}): the sample is not by agent; draw it from a buffer in lockstep.")
        if agent not in items:
            raise ValueError(f"of_agent: there is no agent {agent!r}; there are {', '.join(map(repr, items))}.")
        return items[agent], info._replace(mask=info.mask[agent])

    return view
