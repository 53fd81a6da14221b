"""From what a buffer of many agents holds to the episodes, that is the lives, of each of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from replayfeed.buffers.agent_frames import FIRST_OF_LIFE, LAST_OF_LIFE, PRESENT, AgentFrame, JointFrame
from replayfeed.buffers.held_episodes import HeldEpisode


def own_lives(held: HeldEpisode, agents: Sequence[str]) -> Iterator[tuple[str, HeldEpisode]]:
    """Whose life this is, and its own frames; of single frames without their order those of each agent.

    Args:
      held: of a policy's buffer, whose items are `AgentFrame`s.
      agents: those of the policy, in its order.

    >>> frames = AgentFrame(np.array([10, 11]), np.array([0, 2]), np.array([3, 3], np.int32))
    >>> ((agent, life),) = own_lives(HeldEpisode(frames, np.array([0, 1]), True, False), ["wolf", "sheep"])
    >>> agent, life.items.tolist()
    ('sheep', [10, 11])
    """
    frame: AgentFrame = held.items
    # Streams are numbered by environment, and there by the agent's place (`stream_of`).
    places = np.zeros([len(held.ids)], np.int64) if isinstance(frame.stream, tuple) else frame.stream % len(agents)
    if held.in_order:
        yield agents[int(places[0])], held._replace(items=frame.frame)
        return
    for place, agent in enumerate(agents):
        rows: Any = np.flatnonzero(places == place)
        if len(rows):
            yield (
                agent,
                held._replace(
                    items=tf.nest.map_structure(lambda leaf: leaf[rows], frame.frame),  # noqa: B023
                    ids=held.ids[rows],
                ),
            )


def lives_of(held: HeldEpisode, agents: Sequence[str]) -> Iterator[tuple[str, HeldEpisode]]:
    """The lives in moments of all agents, agent after agent, without the moments in which one was absent.

    A life's beginning is known where it is marked, where another life of the agent ended before, or where the
    environment's episode is there from its beginning; its end where it is marked, where another life begins, or where
    the environment's episode ends.

    Args:
      held: moments in order, whose items are `JointFrame`s.
      agents: in the order of `JointFrame.codes`.

    >>> moments = JointFrame({"a": np.array([10, 11, 0, 13])}, np.array([[1], [3], [0], [1]], np.uint8), np.arange(4))
    >>> [(agent, life.items.tolist(), life.begins, life.ends)
    ...  for agent, life in lives_of(HeldEpisode(moments, np.arange(4), True, False), ["a"])]
    [('a', [10, 11], True, True), ('a', [13], True, False)]
    """
    moments: JointFrame = held.items
    for index, agent in enumerate(agents):
        there = np.flatnonzero(moments.codes[:, index] & PRESENT)
        if not len(there):
            continue
        codes = moments.codes[there, index]
        is_new = (codes & FIRST_OF_LIFE).astype(bool)
        is_new[1:] |= (codes[:-1] & LAST_OF_LIFE).astype(bool)
        begins = [bool(is_new[0]) or held.begins]
        is_new[0] = True
        edges = [*np.flatnonzero(is_new).tolist(), len(there)]
        for number, (start, stop) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
            rows: Any = there[start:stop]
            yield (
                agent,
                held._replace(
                    items=tf.nest.map_structure(lambda leaf: leaf[rows], moments.frames[agent]),  # noqa: B023
                    ids=held.ids[rows],
                    begins=number > 0 or begins[0],
                    ends=bool(codes[stop - 1] & LAST_OF_LIFE) or stop < len(there) or held.ends,
                ),
            )
