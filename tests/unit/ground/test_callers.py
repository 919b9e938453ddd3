"""`%debug` after an error of ours begins where somebody's code has called us."""

from __future__ import annotations

import sys
from types import TracebackType

import pytest
from IPython.core.interactiveshell import InteractiveShell

from monarch_nb.errors import MonarchNbError
from monarch_nb.times import seconds_of


def functions(trace: TracebackType | None) -> list[str]:
    found = []
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def test_our_frames_are_cut_when_the_error_is_shown() -> None:
    def theirs() -> None:
        seconds_of("soon", "TIME")

    with pytest.raises(MonarchNbError) as raised:
        theirs()
    assert functions(raised.value.__traceback__)[-1] == "seconds_of"
    raised.value._render_traceback_()
    assert functions(raised.value.__traceback__)[-1] == "theirs"


def test_so_is_ipython_between_a_cell_and_our_magic(capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell.instance()
    source = "def until(line):\n    seconds_of(line, 'TIME')\n"
    exec(source, ours := {"__name__": "monarch_nb.magic", "seconds_of": seconds_of})
    shell.register_magic_function(ours["until"], magic_name="until")

    shell.run_cell("wait = 'soon'\n%until soon")

    assert "soon" in capsys.readouterr().out
    last = sys.last_traceback
    while last.tb_next is not None:
        last = last.tb_next
    assert last.tb_frame.f_locals["wait"] == "soon"
