"""Functions on samples, `(items, info) -> (items, info)`: for `Dataset.map`, or for what `sample` gives.

| function | from windows to |
| --- | --- |
| `n_step`, `transitions` | transitions of `n` steps, of one |
| `stack_frames` | the same windows with each frame stacked with those before it |
| `returns_to_go`, `lambda_returns` | the same windows, with a return for each frame |
| `recurrent_state` | the same windows, with the state to start on them |

`replay_transitions` is the one call from a buffer to batches of n-step transitions with stacks.
"""

from .frame_stack import stack_frames
from .n_step import n_step, transitions
from .recurrent_state import WithState, recurrent_state
from .replay_transitions import replay_transitions
from .returns import WithReturns, lambda_return, lambda_returns, returns_to_go

__all__ = [
    "WithReturns",
    "WithState",
    "lambda_return",
    "lambda_returns",
    "n_step",
    "recurrent_state",
    "replay_transitions",
    "returns_to_go",
    "stack_frames",
    "transitions",
]
