"""accelerate in ranks that live on: what it keeps of a process group goes with the group."""

import functools
import os
from collections.abc import Callable
from typing import Any


def _forget_lost_groups(state: Any) -> None:
    """`Accelerator()` takes what the one before it found: a group that was interrupted or destroyed, or a world of one
    rank, where there are more now."""
    init: Callable[..., None] = state.AcceleratorState.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, _from_accelerator: bool = False, **kwargs: Any) -> None:
        kept = state.PartialState._shared_state
        had_group = kept.get("backend") not in (None, "xla") and "num_processes" in kept
        was_alone = kept.get("num_processes") == 1 and os.environ.get("WORLD_SIZE", "1") != "1"
        if _from_accelerator and (had_group or was_alone) and not state.torch.distributed.is_initialized():
            state.AcceleratorState._reset_state(reset_partial_state=True)
        init(self, *args, _from_accelerator=_from_accelerator, **kwargs)

    state.AcceleratorState.__init__ = __init__


PATCHES: dict[str, Callable[[Any], None]] = {"accelerate.state": _forget_lost_groups}
"""What to do to which modules once they are imported."""
