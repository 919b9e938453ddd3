"""`%mesh`, `%%mesh` and `%%local` as IPython sees them."""

from __future__ import annotations

import linecache
import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class, no_var_expand

from monarch_nb.errors import ReservationExpired, ReservationReleased, RunFailed, UsageError
from monarch_nb.ground.code_names import not_first
from monarch_nb.notebook.cells.cell import CellRunner
from monarch_nb.notebook.cells.following import RunInterrupted
from monarch_nb.notebook.cells.resuming import say_what_is_saved
from monarch_nb.notebook.commands.files import FileCommands
from monarch_nb.notebook.commands.subcommands import Subcommands
from monarch_nb.notebook.mode import MeshMode
from monarch_nb.notebook.output.tables import calm_line, show
from monarch_nb.notebook.panels.showing import Panels
from monarch_nb.notebook.session import Session

_USER_FRAME = 2
"""How far above `mesh` the frame is in which the magic was typed."""


def _show_as_typed(filename: str, first_line: str, cell: str) -> None:
    """Have `%debug` show a cell as it was typed: IPython has made one line of it, which calls the magic.

    Args:
        first_line: with what there is to say to who lands there.
    """
    if linecache.getline(filename, 1).startswith("get_ipython().run_cell_magic('mesh'"):
        lines = [f"{each}\n" for each in (first_line, *cell.splitlines())]
        linecache.cache[filename] = (sum(map(len, lines)), None, lines, filename)  # as IPython's own compiler does


@magics_class
class MeshMagics(Magics):
    """The magics of one kernel."""

    def __init__(self, shell: InteractiveShell, session: Session, mode: MeshMode, panels: Panels) -> None:
        super().__init__(shell)
        self._shell = shell
        self._session = session
        self._cells = CellRunner(shell, session, mode)
        self._subcommands = Subcommands(shell, session, mode, self._cells, FileCommands(shell, session), panels)

    @no_var_expand
    @line_cell_magic
    def mesh(self, line: str, cell: str | None = None) -> Any:
        """Live ranks for this notebook.

        %mesh SUBCOMMAND does something with them: `%mesh help` lists what.
        %%mesh at the top of a cell runs the cell on them: `%%mesh --help` says how.
        """
        # Only the line is expanded: the body belongs to the ranks, braces and all.
        typed, line = line, self._shell.var_expand(line, _USER_FRAME)
        if not (has_ended := self._session.has_ended):
            self._say_unsaid()
        try:
            if cell is None:
                return self._subcommands.run(line)
            self._cells.run(line, cell)
        except (ReservationExpired, ReservationReleased) as error:
            self._session.end_is_said(error.name)
            say_what_is_saved(self._session, error)
            raise
        except RunFailed as error:
            if cell is not None:
                first = f"%%mesh {typed}".rstrip()
                if error.is_held and error.run is not None:
                    first += f"  # %mesh debug{error.run.mesh.flag} --post-mortem enters the ranks"
                _show_as_typed(sys._getframe(_USER_FRAME).f_code.co_filename, first, cell)
            raise
        except RunInterrupted:
            raise
        except KeyboardInterrupt as interrupt:  # in our own code: nobody wants to read that stack
            raise RunInterrupted(str(interrupt) or "interrupted") from None
        finally:
            if has_ended:  # the command may have said so itself
                self._say_unsaid()
        return None

    def _say_unsaid(self) -> None:
        if unsaid := self._session.take_unsaid():
            show(calm_line(unsaid))

    @no_var_expand
    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run the cell in the kernel, also while `%mesh on` sends cells to the mesh."""
        if line.strip():
            raise UsageError(f"%%local takes nothing, not {line.strip()!r}")
        self._cells.run_in_kernel(cell)

    @no_var_expand
    @line_magic("%mesh")  # type: ignore[arg-type]  # IPython's has no types
    def late_mesh(self, _: str) -> None:
        """`%%mesh` below a cell's first line, which IPython takes for a line's magic of this name."""
        raise UsageError(not_first("mesh"))

    @no_var_expand
    @line_magic("%local")  # type: ignore[arg-type]
    def late_local(self, _: str) -> None:
        """`%%local` there."""
        raise UsageError(not_first("local"))
