"""flashbax: a JAX state that its functions turn into the next one. It gives JAX arrays.

Functions are compiled, and a state is donated to the one that makes the next. Weights are made by its caller, of the
probabilities that it tells. An added item has the largest priority so far: there is no adding with another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flashbax
import jax
import jax.numpy as jnp
import numpy as np
from worker import Buffer, Experience, cycle, serve


class Flashbax(Buffer):
    def __init__(self, experience: Experience, capacity: int) -> None:
        super().__init__(experience, capacity)
        self._buffer = self._functions(add_batches=False)
        self._state = self._buffer.init({name: jnp.asarray(leaf[0]) for name, leaf in experience.frames.items()})
        self._key = jax.random.key(0)
        self._write = jax.jit(self._buffer.set_priorities, donate_argnums=0)

    def fill(self) -> None:
        add = jax.jit(self._functions(add_batches=True).add, donate_argnums=0)
        start = 0
        for frames, td_errors in self.experience.blocks(self.capacity):
            self._state = add(self._state, {name: jnp.asarray(leaf) for name, leaf in frames.items()})
            indices = jnp.arange(start, start + len(td_errors))
            self._state = self._write(self._state, indices, jnp.asarray(self.experience.priorities(td_errors)))
            start += len(td_errors)
        jax.block_until_ready(self._state)

    def contests(self) -> dict[str, Callable[[], Callable[[], Any]]]:
        return {"sample_update": self._sample_update, "add": self._add}

    def _functions(self, *, add_batches: bool) -> Any:
        return flashbax.make_prioritised_item_buffer(
            self.capacity,
            self.experience.batch,
            self.experience.batch,
            add_batches=add_batches,
            priority_exponent=self.experience.alpha,
        )

    def _sample_update(self) -> Callable[[], Any]:
        buffer, num_items, beta, write = self._buffer, self.capacity, self.experience.beta, self._write
        following = cycle([jnp.asarray(row) for row in self.experience.priorities(self.experience.written)])

        @jax.jit
        def draw(state: Any, key: Any) -> Any:
            key, once = jax.random.split(key)
            drawn = buffer.sample(state, once)
            weights = (num_items * drawn.probabilities) ** -beta
            return key, drawn, weights / weights.max()

        def call() -> Any:
            self._key, drawn, weights = jax.block_until_ready(draw(self._state, self._key))
            self._state = write(self._state, drawn.indices, following())
            return jax.block_until_ready(self._state.sum_tree_state), drawn, weights

        return call

    def _add(self) -> Callable[[], Any]:
        add = jax.jit(self._buffer.add, donate_argnums=0)
        steps = [{name: np.asarray(leaf) for name, leaf in step.items()} for step, _ in self.experience.steps()]
        following = cycle(steps)

        def call() -> None:
            self._state = add(self._state, following())

        return call


if __name__ == "__main__":
    serve(Flashbax)
