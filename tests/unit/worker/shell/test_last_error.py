"""What a rank keeps of an error, and how it lets go of it."""

from __future__ import annotations

import warnings

import pytest

from monarch_nb.worker.shell.shell import release_frames

CODE = """\
async def fetch():
    pass

def train():
    batch = fetch()
    raise ValueError("bad batch")

train()
"""


def test_a_coroutine_that_nobody_awaited_is_warned_of_in_the_line_that_held_it() -> None:
    with pytest.raises(ValueError, match="bad batch") as raised:
        exec(compile(CODE, "train.py", "exec"), {"__name__": "__main__"})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        release_frames(raised.value)
    assert [(str(each.message), each.filename, each.lineno) for each in told] == [
        ("coroutine 'fetch' was never awaited", "train.py", 6)
    ]
