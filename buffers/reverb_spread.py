"""Says once that the priorities of a served table lie too far apart for Reverb to add them up exactly.

Reverb keeps the sum of all `p^priority_exponent` in float64 and changes it by differences. What an item that had once a
far larger power than the others leaves behind is a rounding error, 1e-16 of it for each change; when that is no longer
small against the others, their odds are wrong for good, though the probabilities that come with draws look right.
"""

from __future__ import annotations

import logging
import math

from .item_selectors import Prioritized, Sampler
from .nests import Array

_logger = logging.getLogger(__name__)

# Measured with 64 items and 6,400 draws: 1e14 did no harm, 1e16 did.
WIDEST = 1e12


class SpreadWatch:
    """Looks at the priorities that one buffer sets.

    Args:
      sampler: the table's.
      table: its name.

    >>> import numpy as np
    >>> watch = SpreadWatch(Prioritized(1.0), "replay")
    >>> watch.look(np.array([1e6, 1e-6, 0.0])), watch.look(np.array([1e-7]))
    (False, True)
    """

    def __init__(self, sampler: Sampler, table: str) -> None:
        self._exponent = sampler.priority_exponent if isinstance(sampler, Prioritized) else 0.0
        self._table = table
        self._greatest = 0.0
        self._is_told = False

    def look(self, priorities: Array) -> bool:
        """Whether the least of these is now, for the first time, too far below the greatest ever; it is said.

        Args:
          priorities: raw, float64 `[n]`, checked.
        """
        if not self._exponent or not priorities.size:
            return False
        self._greatest = max(self._greatest, float(priorities.max()))
        least = float(priorities.min(initial=math.inf, where=priorities > 0))
        if self._is_told or not 0 < least < self._greatest:
            return False
        spread = self._exponent * (math.log(self._greatest) - math.log(least))
        if spread <= math.log(WIDEST) + 1e-9:
            return False
        self._is_told = True
        _logger.warning(
            "table %r: update_priorities had %g and has %g now, %g times to the power of %g. Reverb adds priorities up "
            "with an error of 1e-16 of the greatest that there was, so that odds of the small ones may be wrong from "
            "now on: clip priorities, or give a larger eps.",
            self._table,
            self._greatest,
            least,
            math.exp(min(spread, 700.0)),
            self._exponent,
        )
        return True
