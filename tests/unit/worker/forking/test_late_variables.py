"""Variables that a program sets too late only because its process was forked."""

from __future__ import annotations

import os
import sys
import types

import pytest

from monarch_nb.worker import imports
from monarch_nb.worker.imports import LateVariables

SETS = (
    "import os\nfor name in ('TORCH_LOGS', 'EDITOR', 'HF_READ', 'TORCH_SAME', 'TORCH_LOGS'): os.environ[name] = 'new'\n"
)


@pytest.mark.parametrize(
    ("main", "late"),
    [
        (SETS, "TORCH_LOGS, HF_READ were set"),
        (f"import math\n{SETS}import json\n", "TORCH_LOGS, HF_READ were set"),
        (SETS.replace("HF_READ", "TERM"), "TORCH_LOGS was set"),
        (f"import json\n{SETS}", ""),
        (f"from json import decoder\n{SETS}", ""),
        (f"from json import JSONDecoder as T\n{SETS}", ""),
        (f"import sys, json\nsys.modules['model'].decode = json.loads\ndel json\n{SETS}", ""),
    ],
)
def test_what_is_set_before_the_program_has_imported_what_reads_it(
    monkeypatch: pytest.MonkeyPatch, main: str, late: str
) -> None:
    monkeypatch.setattr(imports, "_packages", set())
    monkeypatch.setattr(imports, "_read", set())
    monkeypatch.setattr(os, "putenv", os.putenv)
    for name in ("TORCH_LOGS", "EDITOR", "HF_READ", "TERM"):
        monkeypatch.setenv(name, "old")  # and as it was in the end
    monkeypatch.setenv("TORCH_SAME", "new")
    imports.learn(["json"], ["HF_READ"])
    variables = LateVariables()
    monkeypatch.setitem(sys.modules, "model", types.ModuleType("model"))
    program = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", program)
    exec(main, vars(program))
    assert variables.hint().partition(" after ")[0] == late


def test_without_a_preload_nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "_packages", set())
    put = os.putenv
    LateVariables()
    assert os.putenv is put
