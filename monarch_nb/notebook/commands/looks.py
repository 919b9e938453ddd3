"""`%mesh fold` and `%mesh show`: how the cells of this notebook show output from now on."""

from __future__ import annotations

import difflib

from monarch_nb.errors import UsageError
from monarch_nb.ground.rank_sets import name_ranks
from monarch_nb.lines.templates import FOLDS_BY, checked_fold
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.session import Session
from monarch_nb.notebook.syntax.command_line import Parsed

_FOLDED = {
    "numbers": "lines that differ only in numbers are one row",
    "times": "lines that differ only in dates and times of day are one row",
    "equal": "lines that are equal are one row",
    "off": "each rank's line is a row of its own",
}


def fold(session: Session, parsed: Parsed) -> None:
    """Choose in what lines of one row may differ, and say what is in force.

    Raises:
        UsageError: nothing is held, or there is no such way.
    """
    mesh = session.mesh()
    if parsed.word is not None:
        by = checked_fold(parsed.word)
        if by is None and parsed.word != "default":
            nearest = difflib.get_close_matches(parsed.word, [*FOLDS_BY, "default"], n=1)
            meant = f"; did you mean {nearest[0]}?" if nearest else ""
            raise UsageError(f"lines fold by {', '.join(FOLDS_BY)} or default, not {parsed.word!r}{meant}")
        session.look(fold=by or "default")
    chosen = "" if session.fold else " (the default here)"
    show(calm_line(f"{_FOLDED[session.folds_by(len(mesh.ranks))]}{chosen}"))


def show_ranks(session: Session, parsed: Parsed) -> None:
    """Choose whose output is shown, and say what is in force.

    Raises:
        UsageError: nothing is held.
        TargetError: the ranks can not be read, or the mesh does not have them.
    """
    mesh = session.mesh()
    if parsed.word is not None:
        session.shown_ranks(mesh, parsed.word)
        session.look(show=parsed.word)
    ranks = session.shown_ranks(mesh)
    whose = "all ranks" if ranks is None else name_ranks(ranks)
    back = "" if ranks is None else "; %mesh show all shows every rank's again"
    show(calm_line(f"cells show the output of {whose}{back}"))
