"""A save of many agents that is damaged, or contradicts itself, changes nothing of any of their buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .agents_to_save import add, make, seen, times


def damaged(folder: Any, name: str) -> None:
    """One bit of one file is another one."""
    (file,) = (file for file in sorted(folder.glob(f"step-*/*{name}*")))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.unlink()
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("num_here", [0, 3])
@pytest.mark.parametrize("part", [0, 1])
def test_a_part_with_damaged_frames_leaves_all_parts_as_they_are(part, num_here, tmp_path):
    saved, other = make(), make()
    for number in range(5):
        add(saved, number)
    saved.save(tmp_path)
    damaged(tmp_path, f"part-{part}.frames-000000.0")
    for number in range(num_here):
        add(other, 50 + number, ["sheep", "wolf_0"])
    before = seen(other)
    with pytest.raises(ValueError, match=rf"part-{part}\.frames-000000.*damaged"):
        other.restore(tmp_path)
    assert seen(other) == before
    ids = add(other, 7)
    assert (ids["sheep"].tolist(), ids["wolf_1"].tolist()) == ([num_here], [1])
    assert times(other)[0] == set(range(num_here + 1))


@pytest.mark.parametrize("part", ["sheep", "wolf"])
@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("values", "ring"), None, "ring"),
        (("arrays", "sampled"), np.zeros(9, np.uint8), "'sampled' does not fit"),
        (("kind",), "TFPrioritizedReplayBuffer", "a TFPrioritizedReplayBuffer was saved, and this is a TFUniform"),
    ],
)
def test_a_part_that_contradicts_itself_leaves_all_parts_as_they_are(part, path, value, told):
    saved, other = make(), make()
    for number in range(3):
        add(saved, number)
    add(other, 9)
    before, state = seen(other), saved.get_state()
    place = state["parts"][part]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=rf"policy '{part}': .*{told}"):
        other.set_state(state)
    assert seen(other) == before


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("times", np.array([3, 4]), r"'times': expected \[1\] int64, got \[2\] int64"),
        ("times", np.array([-3]), "'times': expected numbers of moments, got -3"),
        ("open", np.zeros([3, 1], np.int8), r"'open': expected \[3, 1\] bool, got \[3, 1\] int8"),
        ("open", None, r"'open': expected \[3, 1\] bool, got nothing"),
    ],
)
def test_who_is_alive_is_checked(name, value, told):
    saved, other = make(), make()
    add(saved, 1)
    state = saved.get_state()
    if value is None:
        del state["arrays"][name]
    else:
        state["arrays"][name] = value
    with pytest.raises(ValueError, match=told):
        other.set_state(state)
    assert len(other) == 0


def test_a_state_of_other_parts_is_refused():
    saved, other = make(), make()
    state = saved.get_state()
    del state["parts"]["wolf"]
    with pytest.raises(ValueError, match="the state holds buffers of 'sheep', and this is one of 'sheep', 'wolf'"):
        other.set_state(state)
    state = make().get_state()
    state["values"]["agents"] = ["sheep"]
    with pytest.raises(ValueError, match=r"'agents': expected 'sheep', 'wolf_0', 'wolf_1', got \['sheep'\]"):
        make().set_state(state)
    state = make("lockstep").get_state()
    state["values"]["loose_flags"] = {"sheep": None}
    with pytest.raises(ValueError, match="'loose_flags': expected one by agent, got {'sheep': None}"):
        make("lockstep").set_state(state)
