"""What code of a cell is called where Monarch's processes execute it: "Cell In[7]", as everywhere here.

Monarch brings the text of such code to tracebacks and to its debugger, from this process. It asks by a name of its own,
so any name will do, but for cloudpickle's "<dynamic-code>": for names in such brackets Python looks for no text.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import cloudpickle

from monarch_nb.ground.code_names import cell_label


def name_cells() -> None:
    """From now on pickles of this process have the names of cells."""
    table = cloudpickle.Pickler.dispatch_table  # Monarch's picklers look there, too
    reduce = table[CodeType]

    def reduce_code(code: CodeType) -> Any:
        make, arguments = reduce(code)
        label = cell_label(code.co_filename)
        name = " ".join(label) if label else "".join(code.co_filename)  # a string of its own, as cloudpickle's
        return make, tuple(name if each in (code.co_filename, "<dynamic-code>") else each for each in arguments)

    table[CodeType] = reduce_code
