"""How a buffer of many agents is saved and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from .buffer_state import BufferState, RestorePlan
from .fields import Field
from .multi_agent_state import MultiAgentState
from .restorable import Restorable


class SavedAgents(Restorable):
    """The part of `MultiAgentReplayBuffer` that saves and restores it."""

    _SAVED_SETTINGS: ClassVar[tuple[str, ...]] = ("mode", "batch_size", "streams")
    _FIXED_SETTINGS: ClassVar[frozenset[str]] = frozenset({"mode", "batch_size", "streams", "policy_of"})

    # Of `MultiAgentReplayBuffer`.
    _state: MultiAgentState
    _check_open: Callable[[], None]

    def serialize(self) -> bytes:
        """`get_state` as bytes, as of any buffer; of tables on a server what `ReverbAgentTables.serialize` keeps."""
        served = self._state.served
        return super().serialize() if served is None else served.serialize()

    def deserialize(self, string_value: bytes) -> None:
        """Takes over what `serialize` gave; tables on a server are compared with it, as `ReverbAgentTables` does.

        Raises:
          ValueError: as `set_state`; of tables on a server, another kind of buffer was saved.
        """
        served = self._state.served
        if served is None:
            super().deserialize(string_value)
        else:
            served.deserialize(string_value)

    def _settings(self) -> dict[str, Any]:
        return self._state.settings(super()._settings())

    def _saved_fields(self) -> Sequence[Field]:
        return ()  # those of the parts

    def _rebuilt(self, settings: Mapping[str, Any]) -> Restorable:
        own, make_buffer = self._state.makers(settings)
        fresh = type(self)(**{**self._arguments, **own, "make_buffer": make_buffer, "shards": 1})
        fresh._arguments = {**self._arguments, **own}
        fresh._state.replaces(self._state)
        return fresh

    def _capture(self) -> BufferState:
        self._check_open()
        return self._state.capture(type(self).__name__, self._settings())

    def _plan_restore(self, state: BufferState, *, resize: bool) -> RestorePlan:
        self._check_open()
        return self._state.plan_restore(state, resize=resize)

    def _has_drawn(self) -> bool:
        return self._state.has_drawn()

    def _moment(self) -> Any:
        self._check_open()
        return self._state.moment()

    def _cut_back(self, moment: Any) -> int:
        self._check_open()
        return self._state.cut_back(moment)
