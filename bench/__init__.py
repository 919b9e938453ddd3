"""`make bench`: how fast monarch_nb is, beside torchrun, ipyparallel, Monarch and a plain redirect, in one run."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # what starts labs, browsers and engines
