"""The notebook's side: magics, completion and how results are shown.

magics     %mesh, %%mesh and %%local
commands/  what each `%mesh SUBCOMMAND` does
assist     Tab and Shift+Tab
cells/     a %%mesh cell: its files go first, then its body; it waits, and Ctrl-C interrupts the ranks
mode       %mesh on: every cell is a %%mesh cell
panels/    reservations and meshes as live widgets, or as they were
curves     curves of what ranks print, live in a cell
scaling    how a cell scales: a table and a curve
output/    what ranks print and return, folded and rendered; tables
session    what this kernel holds, `dev` and `mesh` among its variables, and how the next kernel finds it
syntax/    the line of a magic: flags, help, completion
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from monarch_nb import config
from monarch_nb.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

_unload: dict[InteractiveShell, Callable[[], None]] = {}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics, and attach again to the reservation that this notebook held. `%load_ext` calls it.

    Args:
        shell: IPython's shell of this kernel.

    Raises:
        UsageError: this process is a rank, which would follow its own output.

    Example:
        >>> %load_ext monarch_nb  # doctest: +SKIP
    """
    if config.RANK_TOKEN_VARIABLE in os.environ:
        raise UsageError("%load_ext monarch_nb and %mesh belong into the notebook's kernel, not on the ranks")
    import monarch_nb
    from monarch_nb.client.presenting import hold_for_notebook, serve_notebook
    from monarch_nb.client.runs.results import answer_where
    from monarch_nb.notebook import curves, scaling
    from monarch_nb.notebook.assist import answer_inspection, make_matcher
    from monarch_nb.notebook.cells import calls
    from monarch_nb.notebook.cells.following import takes_input
    from monarch_nb.notebook.cells.unknown_names import known_on_ranks
    from monarch_nb.notebook.magics import MeshMagics
    from monarch_nb.notebook.mode import MeshMode
    from monarch_nb.notebook.output.tables import calm_line, show
    from monarch_nb.notebook.panels.showing import Panels
    from monarch_nb.notebook.session import KernelNames, Session, notebook_path

    unload_ipython_extension(shell)
    notebook = notebook_path(shell.user_ns, os.environ)
    leave_notebook = serve_notebook(notebook or "")
    leave_answering = answer_where(lambda: takes_input(shell))
    names = KernelNames(shell.user_ns)
    session, mode = Session(monarch_nb, notebook, names.leave), MeshMode()
    forget_held = hold_for_notebook(lambda: session.reservation)
    panels = Panels(shell, session)
    unregister_panels = panels.register()
    unregister_curves = curves.register(shell, lambda: panels.is_attended)
    unregister_inspection = answer_inspection(shell, session, mode)
    matcher = make_matcher(session, mode, shell.user_ns)
    unregister_calls = calls.register(shell, session)
    unregister_reports = scaling.register(shell)

    def say_remedy(result: ExecutionResult) -> None:
        if line := known_on_ranks(result.error_in_exec, session, shell):
            show(calm_line(line))

    callbacks: dict[str, Callable[..., Any]] = {
        "pre_execute": mode.pre_execute,
        "pre_run_cell": mode.pre_run_cell,
        "post_execute": mode.post_execute,
        "post_run_cell": say_remedy,
    }

    def unload() -> None:
        leave_notebook()
        leave_answering()
        forget_held()
        unregister_panels()
        unregister_curves()
        unregister_inspection()
        unregister_calls()
        unregister_reports()
        names.take_away()
        for event, callback in callbacks.items():
            shell.events.unregister(event, callback)
        shell.input_transformers_cleanup.remove(mode)
        shell.Completer.custom_matchers.remove(matcher)
        for kind, name in (("line", "mesh"), ("cell", "mesh"), ("cell", "local")):
            shell.magics_manager.magics[kind].pop(name, None)

    shell.register_magics(MeshMagics(shell, session, mode, panels))
    shell.input_transformers_cleanup.append(mode)
    shell.Completer.custom_matchers.append(matcher)
    for event, callback in callbacks.items():
        shell.events.register(event, callback)
    _unload[shell] = unload
    if line := session.reattach():
        show(calm_line(line))
        session.reattached_in = shell.execution_count


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove what `load_ipython_extension` registered. `%unload_ext` calls it. Ranks go on.

    Args:
        shell: IPython's shell of this kernel.

    Example:
        >>> %unload_ext monarch_nb  # doctest: +SKIP
    """
    if unload := _unload.pop(shell, None):
        unload()
