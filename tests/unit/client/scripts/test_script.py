"""What makes no sense of a script, whatever the mesh is."""

import pytest

from monarch_nb.client.scripts.script import Script, check_script
from monarch_nb.errors import UsageError


def test_what_contradicts_itself_is_refused() -> None:
    for script, said in (
        (Script(" "), "no script is named"),
        (Script(" ", shell=True), "no command is given"),
        (Script("train", module=True, executable=True), "-m and --no-python exclude each other"),
        (Script("train.py", max_restarts=-1), "max_restarts is -1: it counts restarts"),
        (
            Script("train.py", in_place=True, beside=True, max_restarts=1),
            "-i runs it in the live ranks: --beside and --max-restarts can not be had with it",
        ),
        (Script("train.py", in_place=True, environment={"A": "1"}), "have their environment already"),
    ):
        with pytest.raises(UsageError, match=said):
            check_script(script)
