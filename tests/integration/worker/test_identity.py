"""Libraries that ask where they run find a script's process; cells keep what they need of IPython."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.worker.harness import RankProcess

ASKS = """
import sys, os, builtins, __main__

def ipython_ps1():                  # Lightning: interactive, so strategy="ddp" is refused
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)

def builtin_shell():                # huggingface_hub, rich, pandas, dask
    return hasattr(builtins, "get_ipython") or hasattr(builtins, "__IPYTHON__")

def imported_shell():               # W&B, comet, plotly's guess of a front end
    from IPython import get_ipython
    return get_ipython() is not None

def shell_of_core():                # torchmetrics, older tqdm
    from IPython.core.getipython import get_ipython
    return get_ipython() is not None

def kernel_application():           # transformers: NotebookProgressCallback
    try:
        return "IPKernelApp" in sys.modules["IPython"].get_ipython().config
    except AttributeError:
        return False

def kernel_modules():               # tqdm.auto
    return "ipykernel.zmqshell" in sys.modules

def argv_without_name():            # HfArgumentParser: Path("").with_suffix() raises
    return not sys.argv[0] or os.path.exists(sys.argv[0])

def file_to_spawn():                # multiprocessing: a spawned process executes it
    return hasattr(__main__, "__file__") or __main__.__spec__ is not None
"""

LIBRARIES = [
    ("rich.console", "_is_jupyter()"),
    ("tqdm.auto", "any('notebook' in each.__module__ for each in tqdm.__mro__)"),
]


def test_a_library_finds_no_notebook(rank: RankProcess) -> None:
    Path(rank.spec.directory, "asks.py").write_text(ASKS)
    found = rank.ok(
        "import asks; {name: ask() for name, ask in vars(asks).items() if type(ask).__name__ == 'function'}"
    )
    assert found == dict.fromkeys(found, False)
    assert len(found) == ASKS.count("def ")


@pytest.mark.parametrize(("module", "asks"), LIBRARIES)
def test_libraries_themselves_say_so(rank: RankProcess, module: str, asks: str) -> None:
    assert rank.ok(f"import {module}; eval({asks!r}, vars({module}))") is False


def test_cells_keep_magics_shell_commands_and_their_shell(rank: RankProcess) -> None:
    assert rank.ok("from IPython import get_ipython as imported\nimported() is get_ipython()") is True
    assert rank.ok("text = !echo 5\n%env MINE=4\nimport os; text[0], os.environ['MINE']") == ("5", "4")
    assert rank.ok("import IPython.core.magic as m\n@m.register_line_magic\ndef twice(line): return line * 2\n") is None
    assert rank.ok("%twice a") == "aa"
    Path(rank.spec.directory, "script.ipy").write_text("x = get_ipython()\n%env MINE=6\n")
    assert rank.ok("%run script.ipy\nx is get_ipython(), os.environ['MINE']") == (True, "6")
    Path(rank.spec.directory, "script.py").write_text("from IPython import get_ipython\ny = get_ipython()\n")
    assert rank.ok("%run script.py\ny is get_ipython()") is True
