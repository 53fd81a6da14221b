"""`python -m replayfeed.cli`: the same as the command `replayfeed`."""

from __future__ import annotations

from .main import main

if __name__ == "__main__":
    main()
