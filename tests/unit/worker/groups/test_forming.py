"""When a thread notes what groups there are: then it must not be interrupted."""

from __future__ import annotations

import contextlib
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_nb.worker.groups import connections, forming


@pytest.mark.parametrize(
    ("files", "keeps"),
    [
        (["/home/me/train.py"], False),
        (["/site-packages/torch/x.py", forming.__file__], False),
        ([forming.__file__], True),
        ([contextlib.__file__, connections.__file__, "/home/me/train.py"], True),
        ([threading.__file__, "/home/me/train.py", forming.__file__], False),
        ([f"{os.path.dirname(os.__file__)}/site-packages/numpy/x.py", forming.__file__], False),
        ([], False),
    ],
)
def test_who_keeps_the_books_of_groups(files: list[str], keeps: bool) -> None:
    frames: list[Any] = [SimpleNamespace(f_code=SimpleNamespace(co_filename=file)) for file in files]
    assert forming.keeps_books(frames) is keeps
