"""Loops over slots by binary exponent of their mass, compiled where numba is installed.

A mass is a float32 above 0, so that its bits are an exponent `c` (1 to 254) and a mantissa `m` of
24 bits: the mass is `m * 2^(c - 150)`. Slots of one exponent lie side by side in `order`:

    order     [num_slots]      the slots that have a mass, those of exponent `c` from heads[c] to heads[c + 1]
    position  [num_slots]      where each slot lies in `order`; -1 where it has no mass
    bits      [num_slots]      each slot's mass, as the int32 of its bits
    heads     [257]            borders in `order`; exponent 0 is mass 0
    sums      [256]            sum of the mantissas of each exponent

Sums of mantissas are whole numbers, so that they stay exact however many masses change. Moving
a slot to another exponent swaps it over the borders between. This module is imported when a
class that draws by priority is built, because numba takes a second to load.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .nests import Array

_Function = TypeVar("_Function", bound=Callable[..., Any])

NUM_CLASSES = 256
MANTISSA_BITS = 23

# A mass of class `c` is its mantissa times this.
CLASS_SCALE = 2.0 ** (np.arange(NUM_CLASSES) - 127.0 - MANTISSA_BITS)
CLASS_SCALE[0] = 0.0

# No mass of class `c` reaches this, and none but 0 is below its half.
CLASS_BOUND = CLASS_SCALE * 2.0 ** (MANTISSA_BITS + 1)

# Children of a node of a tree of maxima: what lies on four cache lines.
FANOUT = 64


def _compiler() -> Callable[[_Function], _Function]:
    try:
        import numba
    except ImportError:
        warnings.warn(
            "numba is not installed: draws by priority run as Python loops, about a hundred times slower; "
            "pip install 'replayfeed[prioritized]'.",
            RuntimeWarning,
            stacklevel=2,
        )
        return lambda function: function

    def compile_function(function: _Function) -> _Function:
        try:
            return numba.njit(cache=True)(function)
        except RuntimeError:  # no folder to keep compiled code in
            return numba.njit(function)

    return compile_function


compiled = _compiler()


@compiled
def _move(slot: int, old: int, new: int, order: Array, position: Array, heads: Array) -> None:
    """Moves a slot that lies in class `old` to class `new`, swapping it over the borders between."""
    place = position[slot]
    while old < new:  # to the end of its class, which becomes the first of the next
        last = heads[old + 1] - 1
        if last != place:
            other = order[last]
            order[place] = other
            position[other] = place
            place = last
        heads[old + 1] = last
        old += 1
    while old > new:  # to the beginning, which becomes the last of the one before
        first = heads[old]
        if first != place:
            other = order[first]
            order[place] = other
            position[other] = place
            place = first
        heads[old] = first + 1
        old -= 1
    order[place] = slot
    position[slot] = place


@compiled
def set_masses(
    slots: Array, new_bits: Array, order: Array, position: Array, bits: Array, heads: Array, sums: Array
) -> None:
    """Gives these slots these masses, one after the other; slots without a mass get one."""
    top = NUM_CLASSES - 1
    for i in range(len(slots)):
        slot = int(slots[i])
        after = int(new_bits[i])
        new = after >> MANTISSA_BITS
        if position[slot] < 0:
            # Behind all others, as a member of the highest class.
            end = heads[NUM_CLASSES]
            order[end] = slot
            position[slot] = end
            heads[NUM_CLASSES] = end + 1
            old = top
        else:
            before = int(bits[slot])
            old = before >> MANTISSA_BITS
            if old:
                sums[old] -= (before & 0x7FFFFF) | 0x800000
        bits[slot] = after
        if new:
            sums[new] += (after & 0x7FFFFF) | 0x800000
        _move(slot, old, new, order, position, heads)


@compiled
def change_masses(
    slots: Array, new_bits: Array, order: Array, position: Array, bits: Array, heads: Array, sums: Array
) -> None:
    """Gives those of these slots that have a mass another one, in the order given; the others stay without."""
    for i in range(len(slots)):
        slot = int(slots[i])
        if position[slot] < 0:
            continue
        before = int(bits[slot])
        after = int(new_bits[i])
        old = before >> MANTISSA_BITS
        new = after >> MANTISSA_BITS
        if old:
            sums[old] -= (before & 0x7FFFFF) | 0x800000
        if new:
            sums[new] += (after & 0x7FFFFF) | 0x800000
        bits[slot] = after
        if old != new:
            _move(slot, old, new, order, position, heads)


@compiled
def discard(slots: Array, order: Array, position: Array, bits: Array, heads: Array, sums: Array) -> None:
    """Takes the masses of these slots away; slots without one stay so."""
    for i in range(len(slots)):
        slot = int(slots[i])
        if position[slot] < 0:
            continue
        before = int(bits[slot])
        old = before >> MANTISSA_BITS
        if old:
            sums[old] -= (before & 0x7FFFFF) | 0x800000
        _move(slot, old, NUM_CLASSES - 1, order, position, heads)
        # Now in the highest class: its last member takes the place.
        end = heads[NUM_CLASSES] - 1
        place = position[slot]
        other = order[end]
        order[place] = other
        position[other] = place
        heads[NUM_CLASSES] = end
        position[slot] = -1
        bits[slot] = 0


@compiled
def draw(
    points: Array,
    uniforms: Array,
    order: Array,
    masses: Array,
    heads: Array,
    sums: Array,
    scale: Array,
    slots: Array,
    chances: Array,
    done: int,
) -> int:
    """Draws a slot for each of `points` from `done` on; returns how many are drawn when `uniforms` run out.

    Args:
      points: in `[0, 1)`, `[n]`: where in the sum of all masses each draw falls; says its class.
      uniforms: in `[0, 1)`: where a candidate was refused, say the next one, and by their fraction whether it is taken.
      order: see above.
      masses: `bits` as float32.
      heads: see above.
      sums: see above.
      scale: `CLASS_SCALE`.
      slots: int64 `[n]`, written.
      chances: float64 `[n]`, written.
      done: how many are drawn already.
    """
    total = 0.0
    lowest, highest = NUM_CLASSES, 0
    for c in range(1, NUM_CLASSES):
        if sums[c]:
            total += sums[c] * scale[c]
            lowest = min(lowest, c)
            highest = c
    used = 0
    if total == 0.0:  # every mass is 0: all alike
        count = heads[1]
        while done < len(points) and used < len(uniforms):
            slots[done] = order[int(uniforms[used] * count)]
            chances[done] = 1.0 / count
            used += 1
            done += 1
        return done
    while done < len(points):
        rest = points[done] * total
        # From the highest: it holds most of the mass.
        c = highest
        while c > lowest and rest >= sums[c] * scale[c]:
            rest -= sums[c] * scale[c]
            c -= 1
        first = heads[c]
        count = heads[c + 1] - first
        bound = scale[c] * 16777216.0
        # Where the point falls in its class is the first candidate, so that strata hold within a class, too.
        place = min(rest / (sums[c] * scale[c]), 0.9999999999999999) * count
        while True:
            member = int(place)
            slot = order[first + member]
            mass = masses[slot]
            if (place - member) * bound < mass:
                break
            if used == len(uniforms):
                return done
            place = uniforms[used] * count
            used += 1
        slots[done] = slot
        chances[done] = mass / total
        done += 1
    return done


@compiled
def raise_maxima(slots: Array, leaves: Array, values: Array, maxima: Array, starts: Array) -> None:
    """Sets leaves of a tree of maxima, one after the other.

    Args:
      slots: which leaves.
      leaves: `[num_slots]`.
      values: `[n]`.
      maxima: the levels above the leaves, one behind the other, the last a single number.
      starts: where each level begins in `maxima`, and where the last one ends.
    """
    for i in range(len(slots)):
        node = int(slots[i])
        before = leaves[node]
        value = values[i]
        leaves[node] = value
        # A node's children are `children[first_child + k]`, up to `num_children` of a level.
        children, first_child, num_children = leaves, 0, len(leaves)
        for level in range(len(starts) - 1):
            node = node // FANOUT
            at = starts[level] + node
            best = maxima[at]
            if value < best:
                if before < best:
                    break
                value = children[first_child + node * FANOUT]
                for child in range(node * FANOUT, min((node + 1) * FANOUT, num_children)):
                    value = max(value, children[first_child + child])
            if value == best:
                break
            maxima[at] = value
            before = best
            children, first_child, num_children = maxima, starts[level], starts[level + 1] - starts[level]


def _compile_all() -> None:
    """Calls each loop once, so that no add or draw has to wait while it is compiled."""
    slots, bits = np.zeros(1, np.int64), np.ones(1, np.float32).view(np.int32)
    heads, sums = np.zeros(NUM_CLASSES + 1, np.int64), np.zeros(NUM_CLASSES, np.int64)
    arrays = np.zeros(1, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.int32), heads, sums
    set_masses(slots, bits, *arrays)
    change_masses(slots, bits, *arrays)
    uniforms, masses = np.full(64, 0.25), arrays[2].view(np.float32)
    draw(uniforms[:1], uniforms, arrays[0], masses, heads, sums, CLASS_SCALE, slots, np.zeros(1), 0)
    discard(slots, *arrays)
    raise_maxima(slots, np.zeros(1, np.float32), np.ones(1, np.float32), np.zeros(1, np.float32), np.array([0, 1]))


_compile_all()
