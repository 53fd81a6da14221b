"""Measures every row of the table of benchmarks/README.md in one run.

    python benchmarks/run.py                     everything, under 30 minutes on 2 cores
    python benchmarks/run.py --only sample       the benchmarks whose name contains it
    python benchmarks/run.py --quick             tiny sizes, to see that everything runs

Each benchmark has a process of its own, so that threads and memory of one do not meet the
next one's; inside it the contenders take turns (`measure.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

# The module that has each benchmark: a function of that name from measure.Scale to rows (measure.row).
BENCHMARKS = {
    "add_batch_1": "in_process",
    "add_batch_64": "in_process",
    "add_sequence": "in_process",
    "as_dataset_eager": "in_process",
    "as_dataset_graph": "in_process",
    "iterate_dataset": "in_process",
    "sample": "in_process",
    "sample_windows": "in_process",
    "as_dataset_pixels_32": "in_process",
    "as_dataset_pixels_256": "in_process",
    "sample_growth": "in_process",
    "prioritized_sample": "prioritized",
    "prioritized_as_dataset": "prioritized",
    "prioritized_add": "prioritized",
    "prioritized_draw": "prioritized",
    "prioritized_update": "prioritized",
    "prioritized_growth": "prioritized",
    "served_as_dataset": "served",
    "served_add_batch": "served",
    "served_add_batch_mirrored": "served",
    "episodic_windows": "episodic",
    "episodic_whole": "episodic",
    "episodic_exact": "episodic",
    "episodic_adds": "episodic",
    "multi_agent_add": "multi_agent",
    "multi_agent_sample": "multi_agent",
    "multi_agent_as_dataset": "multi_agent",
    "multi_agent_shared": "multi_agent",
    "multi_agent_lockstep_add": "multi_agent",
    "multi_agent_lockstep_sample": "multi_agent",
    "multi_agent_lockstep_as_dataset": "multi_agent",
    "multi_agent_rllib": "multi_agent",
    "multi_agent_lockstep_rllib": "multi_agent",
    "multi_agent_prioritized_rllib": "multi_agent",
    "streams_apart": "multi_agent",
    "n_step_eager": "transforms",
    "n_step_graph": "transforms",
    "stacked_pixels_32": "transforms",
    "stacked_pixels_256": "transforms",
    "gae": "rollout",
    "rollout_minibatches": "rollout",
    "rollout_add_batch": "rollout",
    "offline_floats": "offline",
    "offline_served": "offline",
    "offline_served_episodes": "offline",
    "offline_pixels": "offline",
    "offline_write": "offline",
    "offline_write_pixels": "offline",
    "offline_validate": "offline",
    "offline_as_dataset": "offline",
    "offline_hdf5": "offline",
    "offline_memory_fill": "offline_memory",
    "offline_memory_fill_pixels": "offline_memory",
    "offline_memory_write": "offline_memory",
    "offline_memory_validate": "offline_memory",
    "saving_save_w1": "saving",
    "saving_restore_w1": "saving",
    "saving_save_pixels": "saving",
    "saving_restore_pixels": "saving",
    "saving_incremental": "saving_costs",
    "saving_size": "saving_costs",
    "saving_adds_w1": "saving_costs",
    "saving_adds_pixels": "saving_costs",
    "saving_memory_save_w1": "saving_memory",
    "saving_memory_save_pixels": "saving_memory",
    "saving_memory_adding_w1": "saving_memory",
    "saving_memory_adding_pixels": "saving_memory",
    "saving_memory_restore_w1": "saving_memory",
    "saving_memory_restore_pixels": "saving_memory",
    "saving_rounds": "saving_memory",
    "memory_w1": "memory",
    "memory_w2": "memory",
    "memory_frames": "memory",
    "import_time": "imports",
}
_DEFAULT_OUTPUT = pathlib.Path("results/bench.json")
_TIMEOUT_S = 300


def main() -> int:
    arguments = _parse()
    if arguments.list:
        print("\n".join(BENCHMARKS))
        return 0
    if arguments.worker:
        return _work(arguments)
    import report

    chosen = [name for name in BENCHMARKS if arguments.only in name]
    if not chosen:
        print(f"--only {arguments.only!r} matches none of: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    result: dict[str, Any] = {
        "machine": report.machine(),
        "quick": arguments.quick,
        "rows": [],
        "failures": {},
        "seconds": {},
    }
    start = time.monotonic()
    for index, name in enumerate(chosen):
        begun = time.monotonic()
        print(f"[{begun - start:4.0f} s] {index + 1}/{len(chosen)} {name}", file=sys.stderr, flush=True)
        try:
            result["rows"] += _in_own_process(name, quick=arguments.quick)
        except _BenchmarkError as error:
            result["failures"][name] = str(error)
        result["seconds"][name] = round(time.monotonic() - begun, 1)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(report.table(result))
    print(f"\nWritten to {arguments.output} after {time.monotonic() - start:.0f} s.")
    return 1 if result["failures"] else 0


class _BenchmarkError(Exception):
    """A benchmark's process ended without rows."""


def _in_own_process(name: str, *, quick: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder, "rows.json")
        command = [sys.executable, __file__, "--worker", name, "--output", str(output)]
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        try:
            done = subprocess.run(
                [*command, "--quick"] if quick else command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise _BenchmarkError(f"no end after {_TIMEOUT_S} s") from None
        if not output.exists():
            lines = done.stdout.strip().splitlines() or [""]
            print(done.stdout[-4000:], file=sys.stderr)
            raise _BenchmarkError(f"exit code {done.returncode}: {lines[-1]}")
        return json.loads(output.read_text())


def _work(arguments: argparse.Namespace) -> int:
    import measure

    function = getattr(importlib.import_module(BENCHMARKS[arguments.worker]), arguments.worker)
    rows = function(measure.QUICK if arguments.quick else measure.FULL)
    arguments.output.write_text(json.dumps(rows))
    # Not the interpreter's own exit: threads of tf.data and Reverb may still be busy.
    sys.stdout.flush()
    os._exit(0)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="benchmarks whose name contains this")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and few repeats; the numbers mean nothing")
    parser.add_argument("--output", type=pathlib.Path, default=_DEFAULT_OUTPUT, help="where the JSON goes")
    parser.add_argument("--list", action="store_true", help="print the names of the benchmarks")
    parser.add_argument("--worker", choices=BENCHMARKS, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
