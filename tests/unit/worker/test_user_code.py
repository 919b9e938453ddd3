"""Which frames are the user's, and what their lines are called."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy
import pytest

from monarch_nb.worker.runs import values
from monarch_nb.worker.user_code import UserCode, awaited_frames, cut_middle, describe_stack, outwards
from unit.worker.users import label, run_cell


def test_whose_files_are_whose(tmp_path: Path) -> None:
    user_code = UserCode(label, str(tmp_path))
    installed = str(tmp_path / "overlay/lib/python3/site-packages/torch/nn.py")
    assert all(map(user_code.is_users, ("<cell>", str(tmp_path / "train.py"))))
    assert not any(map(user_code.is_users, ("<string>", os.__file__, numpy.__file__, values.__file__, installed)))
    lines = [user_code.line(file, 4) for file in (str(tmp_path / "pkg" / "a.py"), "/else/where/b.py", "<cell>")]
    assert lines == ["pkg/a.py:4", "b.py:4", "Cell In[7]:4"]


def files_of(trace: TracebackType | None) -> list[str]:
    return [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]


def test_lines_of_stacks_and_tracebacks() -> None:
    user_code = UserCode(label)
    frame = run_cell("def f():\n    return sys._getframe()\nframe = f()")["frame"]
    assert user_code.line_of_stack(outwards(frame)) == "Cell In[7]:2"
    assert describe_stack(user_code, [frame])[0] == '  File "Cell In[7]", line 2, in f'
    with pytest.raises(ValueError, match="Expecting") as caught:
        run_cell("import json\n\njson.loads('{')")
    assert user_code.line_of_traceback(caught.value.__traceback__) == "Cell In[7]:3"
    trimmed = user_code.trim(caught.value.__traceback__, only_users=True)
    assert files_of(trimmed)[-1] == "<cell>"
    assert os.path.basename(files_of(user_code.trim(caught.value.__traceback__))[-1]) == "decoder.py"


def deep(depth: int, functions: int) -> TracebackType:
    """Return the traceback of an error below so many calls of so many functions."""
    code = "".join(f"def f{i}(n):\n    if n <= 1: 1 / 0\n    f{(i + 1) % functions}(n - 1)\n" for i in range(functions))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 1000)
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            run_cell(f"{code}f0({depth})")
    finally:
        sys.setrecursionlimit(limit)
    trace: Any = caught.value.__traceback__
    return trace.tb_next.tb_next  # type: ignore[no-any-return]  # without our own frames


@pytest.mark.parametrize(
    ("depth", "functions", "left_out"), [(150, 150, 0), (900, 1, 0), (900, 3, 0), (900, 300, 701), (5_000, 1, 3_001)]
)
def test_only_what_takes_long_to_render_is_cut(depth: int, functions: int, left_out: int) -> None:
    whole = deep(depth, functions)
    cut, count = cut_middle(whole)
    assert (count, len(files_of(cut)), len(files_of(whole))) == (left_out, depth + 1 - left_out, depth + 1)


def test_awaited_frames() -> None:
    async def inner() -> None:
        await asyncio.sleep(10)

    async def outer() -> None:
        await inner()

    async def look() -> list[str]:
        task = asyncio.create_task(outer())
        await asyncio.sleep(0)
        names = [frame.f_code.co_name for frame in awaited_frames(task.get_coro())]
        task.cancel()
        return names

    assert asyncio.run(look()) == ["sleep", "inner", "outer"]
