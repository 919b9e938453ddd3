"""Stacks of threads as text."""

from __future__ import annotations

from monarch_nb.worker.control import stacks
from monarch_nb.worker.user_code import UserCode
from unit.worker.users import label, run_cell


def test_stacks_of_threads() -> None:
    user_code = UserCode(label)
    assert stacks.describe_threads(user_code, None, []) == "idle\n"
    frame = run_cell("def f():\n    return sys._getframe()\nframe = f()")["frame"]
    assert stacks.describe_threads(user_code, None, [("actor e (E.sleep)", [frame])]).startswith("actor e (E.sleep):\n")
    text = stacks.describe_threads(user_code, [frame], [("thread loader", [frame])])
    assert text.count('File "Cell In[7]", line 2, in f') == 2
    assert "\n\nthread loader:\n" in text
