"""What comes beside the items of samples of many agents.

`BufferInfo` has no such fields, not even empty ones: each costs tf.data's Python iterator some 13 us an element.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .base import BufferInfo


class AgentInfo(NamedTuple):
    """`BufferInfo` of a policy's frames, and whose they are, and when they came.

    Attributes:
      ids: as in `BufferInfo`.
      probabilities: as in `BufferInfo`.
      keys: as in `BufferInfo`.
      weights: as in `BufferInfo`.
      mask: as in `BufferInfo`.
      times: int64, the shape of `ids`: the moment of its environment in which each frame was added, counting from 0,
        never anew; -1 on padding.
      agents: int32 `[B]`, whose frames these are: their numbers among `MultiAgentReplayBuffer.agents`.

    >>> AgentInfo.of(BufferInfo([7], [0.5], [7], [1.0], [True]), times=[3], agents=[0]).key
    [7]
    """

    ids: Any
    probabilities: Any
    keys: Any
    weights: Any
    mask: Any
    times: Any
    agents: Any

    @classmethod
    def of(cls, info: BufferInfo, times: Any, agents: Any) -> AgentInfo:
        """What a buffer told, with what is known of agents."""
        return cls(*info, times, agents)

    @property
    def key(self) -> Any:
        """`keys`, under Reverb's name."""
        return self.keys

    @property
    def probability(self) -> Any:
        """`probabilities`, under Reverb's name."""
        return self.probabilities


class LockstepInfo(NamedTuple):
    """`BufferInfo` of windows of moments, in which each agent has a mask of its own.

    Attributes:
      ids: as in `BufferInfo`, of the moments.
      probabilities: as in `BufferInfo`.
      keys: as in `BufferInfo`.
      weights: as in `BufferInfo`.
      mask: by agent bool, the shape of `ids`: False where it was absent, or in another life, and on padding. Of one
        agent's view (`replayfeed.pipelines.of_agent`) its own.
      times: as in `AgentInfo`.

    >>> LockstepInfo([7], [0.5], [7], [1.0], {"a": [True]}, [3]).probability
    [0.5]
    """

    ids: Any
    probabilities: Any
    keys: Any
    weights: Any
    mask: Any
    times: Any

    @property
    def key(self) -> Any:
        """`keys`, under Reverb's name."""
        return self.keys

    @property
    def probability(self) -> Any:
        """`probabilities`, under Reverb's name."""
        return self.probabilities
