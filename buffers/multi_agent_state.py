"""A buffer of many agents at one moment: its buffers together, and who is alive when; taken over whole or not at all.

Whoever holds the writer's lock sees whole moments: no buffer has a frame of one that another has not. What other
threads draw meanwhile, or set as priorities, is before or after the moment for each buffer by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from .agent_policies import AgentPolicies
from .base import ReplayBuffer
from .buffer_state import BufferState, RestorePlan
from .nests import Array
from .saved_by_server import SavedByServer
from .saving import check_fits

_logger = logging.getLogger(__name__)

# The name of the part that the one buffer of a lockstep is, which has no policy.
_MOMENTS = "moments"

# Settings that no `on_mismatch` changes: by them is told whose frames are in which buffer.
_OF_THE_WORLD = ("mode", "policy_of")


class HeldAgents(Protocol):
    """What writes moments into buffers of this process, and knows who is alive."""

    @property
    def lock(self) -> threading.Lock:
        """Held while a moment is written."""

    def held(self) -> dict[str, Array]:
        """Arrays by name that decide how it goes on; the lock is held."""

    def loose_flags(self) -> dict[str, str | None]:
        """By agent `EpisodeRule.loose_flag`, where there is a rule; the lock is held."""

    def take_over(self, held: Mapping[str, Array], loose_flags: Mapping[str, str | None]) -> None:
        """Goes on where another was, these being what it had; the lock is held."""

    def forget_lives(self) -> None:
        """Nobody is alive any more; the lock is held."""


class MultiAgentState:
    """Saves the buffers of many agents, and takes them over.

    Args:
      known: the agents.
      buffers: by policy; in lockstep the one of all under `''`.
      agents: writes into them; where they are on a server, what has them saved there.
      is_lockstep: there is one buffer for all.
    """

    def __init__(
        self,
        known: AgentPolicies,
        buffers: Mapping[str, ReplayBuffer],
        agents: HeldAgents | SavedByServer,
        *,
        is_lockstep: bool,
    ) -> None:
        self._known = known
        self._is_lockstep = is_lockstep
        self._parts = {_MOMENTS: buffers[""]} if is_lockstep else {name: buffers[name] for name in sorted(buffers)}
        # None where the buffers are in this process.
        self.served = agents if isinstance(agents, SavedByServer) else None
        self._in_process = None if isinstance(agents, SavedByServer) else agents
        self._replaced: list[ReplayBuffer] = []

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Its own ones, and under `policy.name` those of each buffer.

        Raises:
          ValueError: the buffers are on a server.
        """
        self._agents()
        found = {**own, "policy_of": {agent: self._known.policy_of(agent) for agent in sorted(self._known.given)}}
        for part, buffer in self._parts.items():
            found[f"{part}.class"] = type(buffer).__name__
            found.update({f"{part}.{name}": value for name, value in buffer._settings().items()})
        return found

    def makers(self, changed: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """What builds a buffer with other settings.

        Args:
          changed: settings that are others, named as in `settings`.

        Returns:
          Those of the whole; and a `make_buffer` for it.

        Raises:
          ValueError: something cannot be changed.
        """
        own: dict[str, Any] = {}
        of_parts: dict[str, dict[str, Any]] = {part: {} for part in self._parts}
        for name, value in changed.items():
            part, dot, setting = name.rpartition(".")
            if setting == "class" or name in _OF_THE_WORLD or (dot and part not in of_parts):
                raise ValueError(
                    f"on_mismatch='keep' cannot change {name}, which is {value!r} in what was saved: build the buffer "
                    "with it."
                )
            (of_parts[part] if dot else own)[setting] = value
        makers = {part: self._maker(part, settings) for part, settings in of_parts.items()}
        return own, makers[_MOMENTS] if self._is_lockstep else makers

    def replaces(self, other: MultiAgentState) -> None:
        """Says that this one takes the other's place: who kept one of its buffers is told when this one is filled."""
        self._replaced = list(other._parts.values())

    def _maker(self, part: str, settings: Mapping[str, Any]) -> Callable[..., Any]:
        buffer = self._parts[part]

        def make(data_spec: Any, batch_size: int) -> Any:
            return buffer._rebuilt({**settings, "data_spec": data_spec, "batch_size": batch_size})

        return make

    def capture(self, kind: str, settings: Mapping[str, Any]) -> BufferState:
        """All buffers as they are at one moment, and who is alive; to be closed.

        Args:
          kind: the name of the class of the whole.
          settings: that are saved with it.

        Raises:
          ValueError: the buffers are on a server.
        """
        agents = self._agents()
        parts: dict[str, BufferState] = {}
        with agents.lock:
            try:
                for part, buffer in self._parts.items():
                    parts[part] = buffer._capture()
            except BaseException:
                for state in parts.values():
                    state.close()
                raise
            held, loose_flags = agents.held(), agents.loose_flags()
        moments = {part: state.moment for part, state in parts.items()}
        return BufferState(
            kind=kind,
            fields=(),
            settings=settings,
            values={"agents": list(self._known.given), "loose_flags": loose_flags},
            arrays=held,
            parts=parts,
            moment=_moment(moments, held, loose_flags),
        )

    def plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        """What becomes of the buffers together.

        Raises:
          ValueError: one of them cannot take over its part; the message names it.
          ValueError: the state contradicts itself.
        """
        agents = self._agents()
        if set(state.parts) != set(self._parts):
            raise ValueError(
                f"the state holds buffers of {_listed(state.parts)}, and this is one of {_listed(self._parts)}."
            )
        held, loose_flags = self._checked(agents, state.arrays, state.values.get("loose_flags"))
        given = state.values.get("agents")
        if not isinstance(given, list) or sorted(given) != sorted(self._known.given):
            raise ValueError(f"the state's 'agents': expected {_listed(self._known.given)}, got {given!r}.")
        plans = {}
        for part, buffer in self._parts.items():
            try:
                changed = check_fits(buffer, state.parts[part], "resize" if resize else "error")
                plans[part] = buffer._plan_restore(state.parts[part], resize=bool(changed))
            except ValueError as error:
                raise ValueError(f"{'moments' if self._is_lockstep else f'policy {part!r}'}: {error}") from error

        def finish() -> None:
            agents.take_over(held, loose_flags)
            for buffer in self._replaced:
                buffer.close()
            self._replaced = []
            self._tell_numbers(given)

        return RestorePlan(
            places=slice(0, 0),
            rows=np.zeros(0, np.int64),
            storage=None,
            lock=agents.lock,
            is_empty=not agents.held()["times"].any(),
            clear=agents.forget_lives,
            finish=finish,
            parts=plans,
        )

    def has_drawn(self) -> bool:
        """Whether anything reads the memory of these buffers."""
        return any(buffer._has_drawn() for buffer in self._parts.values())

    def moment(self) -> Any:
        """How far all buffers are, as a plain value; None: one of them cannot be cut back.

        Raises:
          ValueError: the buffers are on a server.
        """
        agents = self._agents()
        with agents.lock:
            moments = {part: buffer._moment() for part, buffer in self._parts.items()}
            return _moment(moments, agents.held(), agents.loose_flags())

    def cut_back(self, moment: Any) -> int:
        """Takes back what was added to any buffer after `moment`; how many frames that were.

        Raises:
          ValueError: the moment is of other buffers; nothing is changed.
        """
        agents = self._agents()
        if not isinstance(moment, Mapping) or set(moment) != {"parts", "held", "loose_flags"}:
            raise ValueError(f"{moment!r} is no moment of a MultiAgentReplayBuffer.")
        if set(moment["parts"]) != set(self._parts):
            raise ValueError(f"the moment is of the buffers {_listed(moment['parts'])}, not {_listed(self._parts)}.")
        shapes = {name: array.shape for name, array in agents.held().items()}
        held, loose_flags = self._checked(agents, _from_plain(moment["held"], shapes), moment["loose_flags"])
        with agents.lock:
            num = sum(buffer._cut_back(moment["parts"][part]) for part, buffer in self._parts.items())
            agents.take_over(held, loose_flags)
        return num

    def _tell_numbers(self, given: list[str]) -> None:
        if not self._is_lockstep and given != list(self._known.given):
            _logger.warning(
                "the agents were given in another order when this buffer was saved: info.agents numbers them as %s "
                "now, and did as %s. Batches that wait in saved iterators, and what was learned of these numbers, go "
                "by the old ones.",
                list(self._known.given),
                given,
            )

    def _agents(self) -> HeldAgents:
        if self._in_process is None:
            raise ValueError(
                "the tables of this buffer are on a Reverb server, which saves and restores them with all that writers "
                "and readers share: give ReplayServer a checkpoint_dir."
            )
        return self._in_process

    def _checked(
        self, agents: HeldAgents, arrays: Mapping[str, Array], loose_flags: Any
    ) -> tuple[dict[str, Array], dict[str, str | None]]:
        """A copy of what was held.

        Raises:
          ValueError: it is not what this mode holds.
        """
        found = {}
        for name, here in agents.held().items():
            array = arrays.get(name)
            if array is None or array.shape != here.shape or array.dtype != here.dtype:
                told = "nothing" if array is None else f"{list(array.shape)} {array.dtype}"
                raise ValueError(f"the state's {name!r}: expected {list(here.shape)} {here.dtype}, got {told}.")
            found[name] = array.copy()
        if (found["times"] < 0).any():
            raise ValueError(f"the state's 'times': expected numbers of moments, got {found['times'].min()}.")
        if not isinstance(loose_flags, Mapping) or set(loose_flags) != set(agents.loose_flags()):
            raise ValueError(f"the state's 'loose_flags': expected one by agent, got {loose_flags!r}.")
        return found, dict(loose_flags)


def _moment(parts: Mapping[str, Any], held: Mapping[str, Array], loose_flags: Mapping[str, Any]) -> Any:
    """How far all are, as a plain value; None: one cannot be cut back."""
    if None in parts.values():
        return None
    return {"parts": dict(parts), "held": _to_plain(held), "loose_flags": dict(loose_flags)}


def _to_plain(held: Mapping[str, Array]) -> dict[str, Any]:
    """Times as a list, flags as text: short, as many moments are kept.

    >>> _to_plain({"times": np.array([3, 4]), "open": np.array([[True, False]])})
    {'times': [3, 4], 'open': '80'}
    """
    return {
        name: np.packbits(array).tobytes().hex() if array.dtype == bool else array.tolist()
        for name, array in held.items()
    }


def _from_plain(plain: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Of `_to_plain`, arrays of these shapes; what does not fit is left out.

    >>> _from_plain({"times": [3, 4], "open": "80"}, {"times": (2,), "open": (1, 2)})
    {'times': array([3, 4]), 'open': array([[ True, False]])}
    """
    found: dict[str, Array] = {}
    for name, shape in shapes.items():
        value, size = plain.get(name), int(np.prod(shape))
        if isinstance(value, str):
            bits = np.unpackbits(np.frombuffer(bytes.fromhex(value), np.uint8))
            if size <= len(bits) < size + 8:
                found[name] = bits[:size].astype(bool).reshape(shape)
        elif isinstance(value, list):
            found[name] = np.asarray(value, np.int64)
    return found


def _listed(names: Any) -> str:
    return ", ".join(map(repr, sorted(names)))
