"""From data to buffers and from buffers to training: RLDS in, dataset functions, collectors."""

from .cut_sequences import add_cut_sequences
from .episodes import Episodes
from .feed import iterate
from .fill import fill
from .load_report import Finding, LoadReport
from .rlds_read import load_rlds

__all__ = ["add_cut_sequences", "Episodes", "Finding", "LoadReport", "fill", "iterate", "load_rlds"]
