"""`make bench`: how fast monarch_nb is, beside torchrun, ipyparallel, Monarch and a plain redirect, in one run."""
