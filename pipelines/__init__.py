"""From data to buffers and from buffers to training: RLDS in, dataset functions, collectors."""

from .episodes import Episodes
from .feed import iterate
from .fill import fill
from .load_report import Finding, LoadReport
from .rlds_read import load_rlds

__all__ = ["Episodes", "Finding", "LoadReport", "fill", "iterate", "load_rlds"]
