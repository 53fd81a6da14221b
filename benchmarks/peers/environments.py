"""Which libraries we compare with, at which versions, and how their environments are made.

    python benchmarks/peers/environments.py             make what is missing or out of date
    python benchmarks/peers/environments.py cpprb       only these

An environment that cannot be made leaves its reason behind, which the benchmarks then print in its place.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence

_HERE = pathlib.Path(__file__).resolve().parent
FOLDER = _HERE.parent.parent / ".bench-venvs"
_RECIPE, _FAILURE = "installed.json", "failed.txt"
_TIMEOUT_S = 1500


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library, and where it runs.

    Attributes:
      title: as the tables call it, with its version.
      script: what runs in its environment, in this folder.
      requirements: what pip installs, in one call an entry; none at all is this repository's own environment.
      then: a script of this folder that the new environment runs once.
      max_items: it is filled with no more than that, because a fill takes so long. Fewer items make it faster.
      variables: of the environment of its process.
    """

    title: str
    script: str
    requirements: Sequence[Sequence[str]] = ()
    then: str = ""
    max_items: int | None = None
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


# Prioritized replay.
PEERS: Mapping[str, Peer] = types.MappingProxyType(
    {
        "cpprb": Peer("cpprb 11.0.0", "cpprb_peer.py", [["cpprb==11.0.0", "numpy<3"]]),
        "torchrl": Peer(
            "torchrl 0.14.1",
            "torchrl_peer.py",
            # The torch of the machines that we measure on. setuptools, ninja and pybind11 build what `then` says.
            [["torch==2.13.0", "torchrl==0.14.1", "tensordict==0.14.3", "numpy<3", "setuptools", "ninja", "pybind11"]],
            # Its wheel holds a segment tree that was built for another torch; without one its sampler does not work.
            then="build_torchrl_tree.py",
            # With two threads on two busy cores its gathers of 256 rows were up to ten times slower.
            variables={"OMP_NUM_THREADS": "1"},
        ),
        # The newest jax that it was released with.
        "flashbax": Peer(
            "flashbax 0.1.3",
            "flashbax_peer.py",
            [["flashbax==0.1.3", "jax==0.10.2"]],
            variables={"JAX_PLATFORMS": "cpu"},
        ),
        "dopamine": Peer(
            "Dopamine 4.1.2",
            "dopamine_peer.py",
            # Without what its agents and environments want: half a dozen frameworks. The second call is what its
            # buffers import.
            [
                ["--no-deps", "dopamine-rl==4.1.2"],
                ["flax", "jax==0.10.2", "gin-config", "orbax-checkpoint", "python-snappy", "absl-py", "numpy<3"],
            ],
            # A Python object an item: a million of them are minutes.
            max_items=100_000,
            variables={"JAX_PLATFORMS": "cpu"},
        ),
        "rllib": Peer(
            "RLlib 2.60.0",
            "rllib_peer.py",
            [["torch==2.13.0", "ray[rllib]==2.60.0"]],
            # A Python object an item.
            max_items=100_000,
        ),
        # At the version of constraints.txt. A fill is 10,000 items a second.
        "reverb": Peer("Reverb 0.14.0", "reverb_peer.py", max_items=50_000),
    }
)

# Stacks of single frames.
FRAME_PEERS: Mapping[str, Peer] = types.MappingProxyType(
    {
        "dopamine_frames": Peer(
            "Dopamine circular buffer 4.1.2",
            "dopamine_frames_peer.py",
            # Without what its agents and environments want. Its old buffers import TensorFlow, though only to save.
            [["--no-deps", "dopamine-rl==4.1.2"], ["tensorflow-cpu==2.15.1", "gin-config", "absl-py", "numpy<2"]],
        ),
    }
)

# Many agents: other buffers of a peer above, in the environment of that one.
RLLIB_AGENTS = dataclasses.replace(PEERS["rllib"], script="rllib_agents_peer.py")

# To files and back: other buffers, in the environments of the same peers.
# Their pace does not depend on how many items they hold, and with these a save takes half a second.
CPPRB_SAVING = dataclasses.replace(PEERS["cpprb"], script="cpprb_saving_peer.py", max_items=100_000)
REVERB_SAVING = dataclasses.replace(PEERS["reverb"], script="reverb_saving_peer.py", max_items=20_000)
# In a process of its own: threads of TensorFlow go on for a while after it saved.
TF_AGENTS_SAVING = Peer("TF-Agents, tf.train.Checkpoint", "tf_agents_saving_peer.py")

# What they are compared with, here so that it takes its turns in a process like theirs.
OURS = Peer("replayfeed", "replayfeed_peer.py")
OURS_AGENTS = Peer("replayfeed", "replayfeed_agents_peer.py")


def peer_of(name: str) -> Peer:
    """The peer of that name.

    Raises:
      KeyError: there is none.
    """
    return PEERS[name] if name in PEERS else FRAME_PEERS[name]


def python_of(name: str) -> pathlib.Path | str:
    """The interpreter of a peer's environment, or the reason, as a `str`, why there is none.

    Raises:
      KeyError: there is no such peer.
    """
    peer = peer_of(name)
    if not peer.requirements:
        return pathlib.Path(sys.executable)
    folder = FOLDER / name
    if (folder / _FAILURE).exists():
        return (folder / _FAILURE).read_text().strip()
    if not (folder / _RECIPE).exists():
        return "no environment; make bench-peers makes it"
    if (folder / _RECIPE).read_text() != _recipe(peer):
        return "its environment was made by another recipe; make bench-peers makes it anew"
    return folder / "bin" / "python"


def make(name: str) -> str:
    """Makes a peer's environment where it is missing, failed or out of date; says why that failed, or nothing."""
    peer, folder = peer_of(name), FOLDER / name
    if isinstance(python_of(name), pathlib.Path):
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [
        [sys.executable, "-m", "venv", folder],
        *([*pip, *requirements] for requirements in peer.requirements),
        *([[python, _HERE / peer.then]] if peer.then else []),
    ]
    for command in commands:
        reason = _run([str(word) for word in command], peer)
        if reason:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _FAILURE).write_text(reason + "\n")
            return reason
    (folder / _RECIPE).write_text(_recipe(peer))
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*PEERS, *FRAME_PEERS]
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"of {', '.join(known)}; all without any")
    names = parser.parse_args().names or known
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(known)}")
    failed = False
    for name in names:
        print(f"{peer_of(name).title}: ", end="", flush=True)
        reason = make(name)
        print(f"FAILED: {reason}" if reason else "ready", flush=True)
        failed = failed or bool(reason)
    return int(failed)


def _run(command: Sequence[str], peer: Peer) -> str:
    """Why a command failed, in one line, or nothing."""
    environment = {**os.environ, **peer.variables}
    environment.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"no end of its installation after {_TIMEOUT_S} s"
    if not done.returncode:
        return ""
    print(done.stdout[-4000:], file=sys.stderr)
    lines = done.stdout.strip().splitlines() or [""]
    errors = [line for line in lines if line.lower().startswith("error")]
    return f"cannot be installed: {(errors or lines)[-1].strip()}"


def _recipe(peer: Peer) -> str:
    """What an environment was made by: it is made anew when that changes."""
    script = (_HERE / peer.then).read_text() if peer.then else ""
    return json.dumps([sys.version, peer.requirements, script])


if __name__ == "__main__":
    sys.exit(main())
