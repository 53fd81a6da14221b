"""`python -m replayfeed.pipelines.cartpole`: what `make run` calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import quiet


def main() -> int:
    """Runs the job; 0 when each part reached its bar, 1 when one did not, 130 after CTRL-C."""
    parser = argparse.ArgumentParser(prog="python -m replayfeed.pipelines.cartpole", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for picture and dataset")
    parser.add_argument("--seed", type=int, default=1, help="of environments, networks and draws (default: 1)")
    parser.add_argument(
        "--parts", nargs="+", default=["local", "served", "offline", "pendulum", "killed"], metavar="PART",
        choices=["local", "served", "offline", "pendulum", "killed"],
        help="local, served, offline (which needs local), pendulum, killed; default: all",
    )  # fmt: skip
    arguments = parser.parse_args()
    if "offline" in arguments.parts and "local" not in arguments.parts:
        parser.error("part offline records the agent of part local: run both")
    quiet.set_up()
    with quiet.without_notices():
        print("Loading TensorFlow and TF-Agents ...", flush=True)
        from .job import run_parts

        try:
            return 0 if run_parts(arguments.parts, arguments.seed, arguments.output) else 1
        except KeyboardInterrupt:
            print("\nStopped.", file=sys.stderr)
            return 130


if __name__ == "__main__":
    sys.exit(main())
