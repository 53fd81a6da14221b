"""How items reach the server: created, pending ones bounded, waits told, what waits raise kept until a step is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .nests import Array
from .reverb_import import load_pybind, load_reverb
from .reverb_limits import limiter_state
from .reverb_link import FIRST_LINE_SECONDS, ServerLink, Watch

# How long pending items get before a read, or a write, looks whether a limiter holds them back.
_READ_SECONDS = 0.01
_LOOK_SECONDS = 0.05


class ItemSender:
    """One writer of Reverb's: frames are appended, items made of references to them, and confirmed by the server.

    No wait inside a step raises: what it raises, an interrupt too, is kept in `late`, and `raise_late` raises it when
    the step is done. While something is there nothing waits.

    Args:
      link: the server.
      tables: names of the tables, for messages.
      chunk_length: frames of a column that Reverb compresses together.
      num_kept: newest frames of each column that items may still refer to. Reverb counts those of the column itself:
        a column that frames leave out, for however long, loses no reference.
      max_pending: items that may wait for the server; then `bound_pending` waits until half of them are confirmed.

    Attributes:
      late: what waits of the present step raised.
      is_held_back: a call waits for a limiter to let items in. They were sent; only samples can help.
    """

    def __init__(
        self, link: ServerLink, tables: Sequence[str], *, chunk_length: int, num_kept: int, max_pending: int
    ) -> None:
        self._pybind = load_pybind()
        self._link = link
        self._tables = tuple(tables)
        self._max_pending = max_pending
        self._unconfirmed = 0
        self.is_held_back = False
        self.late: list[BaseException] = []
        options = self._options(chunk_length, max(chunk_length, num_kept))
        self._client = self._pybind.Client(link.address)
        self._writer: Any = self._client.NewTrajectoryWriter(options, False)
        # Reverb's own: nothing stands between it and the loops that call it.
        self.append = self._writer.Append

    def append_apart(
        self, first: int, frames: Sequence[Sequence[Array]], chunk_length: int | None = None
    ) -> list[list[Any]]:
        """Appends frames into columns from `first` on, to which items may refer for ever.

        Args:
          first: the first of the columns.
          frames: columns of each.
          chunk_length: frames that Reverb compresses together; None: all.

        Returns:
          References by frame, then column.
        """
        options = self._options(chunk_length or len(frames), len(frames))
        for column in range(first, first + len(frames[0])):
            self._writer.ConfigureChunker(column, options)
        return [self.append([None] * first + list(columns))[first:] for columns in frames]

    def create(self, table: str, priority: float, refs: list[list[Any]], squeezed: list[bool]) -> None:
        """Makes an item of references by column."""
        self._unconfirmed += 1  # first: an interrupt in between must not hide an item from `flush`
        self._writer.CreateItem(table, priority, refs, squeezed)

    def bound_pending(self) -> None:
        """Waits where too many items are not confirmed; what that raises is kept."""
        if self._unconfirmed >= self._max_pending and not self.late:
            try:
                self._confirm(self._max_pending // 2)
            except BaseException as error:  # raised when every stream has its frame
                self.late.append(error)

    def raise_late(self) -> None:
        """Raises what a wait of the step that just ended raised, if one did.

        Raises:
          WaitTimeoutError: the server did not confirm, or tell, something within the link's timeout.
        """
        if self.late:
            late = self.late[0]
            self.late.clear()
            raise late

    def flush(self) -> None:
        """Returns when the server has confirmed every item.

        Raises:
          WaitTimeoutError: it has not within the link's timeout; the items may still arrive later.
        """
        if self._unconfirmed:
            self._confirm(0)

    def flush_for_a_read(self, timeout_s: float | None = None) -> bool:
        """As `flush`, but returns as well when a limiter holds items back: samples are what they wait for.

        Args:
          timeout_s: instead of the link's.

        Returns:
          Whether items are held back.

        Raises:
          WaitTimeoutError: as `flush`.
        """
        return bool(self._unconfirmed) and not self._confirm(0, is_read=True, timeout_s=timeout_s)

    def count_held_back(self) -> int:
        """Items that the server does not confirm while nobody draws."""
        low, high = 0, self._unconfirmed
        while low < high:
            middle = (low + high) // 2
            if self._flush_within(middle, 0.0):
                high = middle
            else:
                low = middle + 1
        # Those that are in already may be confirmed a little later.
        while high and self._flush_within(high - 1, _LOOK_SECONDS):
            high -= 1
        self._unconfirmed = high
        return high

    def close(self) -> None:
        """Ends the connection; what is unconfirmed may be lost."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.Close()

    def where(self) -> str:
        """The tables, as messages name them."""
        names = ", ".join(map(repr, self._tables))
        return f"table {names}" if len(self._tables) == 1 else f"tables {names}"

    def _options(self, chunk_length: int, num_kept: int) -> Any:
        return self._pybind.ConstantChunkerOptions(max_chunk_length=chunk_length, num_keep_alive_refs=num_kept)

    def _confirm(self, num_may_wait: int, *, is_read: bool = False, timeout_s: float | None = None) -> bool:
        """Whether at most so many items wait; False only for a read, where a limiter holds more of them back."""
        watch = Watch(self._link, timeout_s)
        seconds = _READ_SECONDS if is_read else _LOOK_SECONDS
        try:
            while not self._flush_within(num_may_wait, min(watch.remaining(), seconds, self._link.log_interval_s)):
                blocked = self._blocked_tables()
                if is_read and blocked:
                    return False
                self.is_held_back = bool(blocked)
                seconds = _LOOK_SECONDS if is_read else FIRST_LINE_SECONDS
                why = ", which does not answer" if blocked is None else ""
                if blocked:
                    why = f": {'; '.join(blocked)}"
                watch.tell_or_raise(
                    f"{self.where()} at {self._link.address}: up to {self._unconfirmed} items are not confirmed by "
                    f"the server{why}; waiting"
                )
            self._unconfirmed = num_may_wait
            return True
        finally:
            self.is_held_back = False

    def _flush_within(self, num_may_wait: int, seconds: float) -> bool:
        """Whether at most so many items are unconfirmed after so many seconds."""
        try:
            self._writer.Flush(num_may_wait, max(1, int(seconds * 1000)))
        except RuntimeError as error:
            if "Timeout exceeded" not in str(error):
                raise
            return False
        return True

    def _blocked_tables(self) -> list[str] | None:
        """What those of the tables wait for whose limiters let no insert through; None: the server does not answer."""
        try:
            infos = self._link.ask(1.0)
        except (RuntimeError, load_reverb().DeadlineExceededError):
            return None
        why = [limiter_state(infos[table]).why_no_insert() for table in self._tables if table in infos]
        return [text for text in why if text is not None]
