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

# No sum of what is read can be this: comparing with it keeps a compiler from leaving reads out.
NOTHING_SEEN = -(2**63)

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
def _touch(slots: Array, order: Array, position: Array, bits: Array) -> int:
    """Reads what is to be changed: here waits for memory go side by side, among changes one after the other."""
    seen = 0
    for i in range(len(slots)):
        seen += position[slots[i]] + bits[slots[i]]
    for i in range(len(slots)):
        seen += order[position[slots[i]]]
    return seen


@compiled
def set_masses(
    slots: Array,
    new_bits: Array,
    old_bits: Array,
    order: Array,
    position: Array,
    bits: Array,
    heads: Array,
    sums: Array,
) -> None:
    """Gives these slots these masses, one after the other, also those without one. Writes what they had before."""
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
            old_bits[i] = 0
        else:
            before = int(bits[slot])
            old = before >> MANTISSA_BITS
            old_bits[i] = before
            if old:
                sums[old] -= (before & 0x7FFFFF) | 0x800000
        bits[slot] = after
        if new:
            sums[new] += (after & 0x7FFFFF) | 0x800000
        _move(slot, old, new, order, position, heads)


@compiled
def change_masses(
    slots: Array,
    new_bits: Array,
    old_bits: Array,
    order: Array,
    position: Array,
    bits: Array,
    heads: Array,
    sums: Array,
) -> None:
    """Gives those of these slots that have a mass another one, in the order given; the others stay without.

    Writes what they had before, -1 where that was nothing.
    """
    if len(slots) > 1 and _touch(slots, order, position, bits) == NOTHING_SEEN:
        return
    for i in range(len(slots)):
        slot = int(slots[i])
        if position[slot] < 0:
            old_bits[i] = -1
            continue
        before = int(bits[slot])
        old_bits[i] = before
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
def discard(
    slots: Array, old_bits: Array, order: Array, position: Array, bits: Array, heads: Array, sums: Array
) -> None:
    """Takes the masses of these slots away; slots without one stay so. Writes what they had before, -1 for nothing."""
    for i in range(len(slots)):
        slot = int(slots[i])
        if position[slot] < 0:
            old_bits[i] = -1
            continue
        before = int(bits[slot])
        old_bits[i] = before
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
) -> bool:
    """Draws a slot for each of `points`; returns whether `uniforms` were enough.

    Candidates are looked up all together, so that waits for memory go side by side, and those that were refused again.

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
    """
    num = len(points)
    total = 0.0
    lowest, highest = NUM_CLASSES, 0
    for c in range(1, NUM_CLASSES):
        if sums[c]:
            total += sums[c] * scale[c]
            lowest = min(lowest, c)
            highest = c
    if total == 0.0:  # every mass is 0: all alike
        count = heads[1]
        for i in range(num):
            slots[i] = order[int(points[i] * count)]
            chances[i] = 1.0 / count
        return True
    classes, places = np.empty(num, np.int64), np.empty(num)
    for i in range(num):
        rest = points[i] * total
        # From the highest: it holds most of the mass.
        c = highest
        while c > lowest and rest >= sums[c] * scale[c]:
            rest -= sums[c] * scale[c]
            c -= 1
        classes[i] = c
        # Where the point falls in its class is the first candidate, so that strata hold within a class, too.
        places[i] = min(rest / (sums[c] * scale[c]), 0.9999999999999999) * (heads[c + 1] - heads[c])
    waiting = np.arange(num)
    num_waiting, used = num, 0
    while num_waiting:
        for k in range(num_waiting):
            i = waiting[k]
            slots[i] = order[heads[classes[i]] + int(places[i])]
        for k in range(num_waiting):
            i = waiting[k]
            chances[i] = masses[slots[i]]
        num_refused = 0
        for k in range(num_waiting):
            i = waiting[k]
            c = classes[i]
            if (places[i] - int(places[i])) * (scale[c] * 16777216.0) < chances[i]:
                chances[i] /= total
                continue
            if used == len(uniforms):
                return False
            places[i] = uniforms[used] * (heads[c + 1] - heads[c])
            used += 1
            waiting[num_refused] = i
            num_refused += 1
        num_waiting = num_refused
    return True


@compiled
def set_leaves(slots: Array, values: Array, leaves: Array, befores: Array) -> None:
    """Sets leaves, one after the other, and writes what they were before."""
    for i in range(len(slots)):
        befores[i] = leaves[slots[i]]
        leaves[slots[i]] = values[i]


@compiled
def raise_maxima(slots: Array, befores: Array, values: Array, leaves: Array, maxima: Array, starts: Array) -> None:
    """Brings a tree of maxima up to date, after leaves were set one after the other.

    Args:
      slots: which leaves `[n]`, in the order in which they were set.
      befores: what each was before it was set, `[n]`; NaN where nothing was set.
      values: what each was set to, `[n]`.
      leaves: `[num_slots]`, as they are now.
      maxima: the levels above the leaves, one behind the other, the last a single number.
      starts: where each level begins in `maxima`, and where the last one ends.
    """
    for i in range(len(slots)):
        node = int(slots[i])
        before = befores[i]
        value = values[i]
        if np.isnan(before):
            continue
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
    slots, bits, ones = np.zeros(1, np.int64), np.ones(1, np.float32).view(np.int32), np.ones(1, np.float32)
    heads, sums = np.zeros(NUM_CLASSES + 1, np.int64), np.zeros(NUM_CLASSES, np.int64)
    arrays = np.zeros(1, np.int32), np.full(1, -1, np.int32), np.zeros(1, np.int32), heads, sums
    old_bits = np.zeros(1, np.int32)
    set_masses(slots, bits, old_bits, *arrays)
    change_masses(slots, bits, old_bits, *arrays)
    masses = arrays[2].view(np.float32)
    draw(np.zeros(1), np.zeros(1), arrays[0], masses, heads, sums, CLASS_SCALE, slots, np.zeros(1))
    discard(slots, old_bits, *arrays)
    leaves, maxima, befores = np.zeros(1, np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)
    set_leaves(slots, ones, leaves, befores)
    raise_maxima(slots, befores, ones, leaves, maxima, np.array([0, 1]))


_compile_all()
