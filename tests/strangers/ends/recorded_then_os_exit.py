# A program that leaves by os._exit after @record wrote the error.
# procs: 2
import os

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    raise ValueError("bad batch")


try:
    main()
except ValueError:
    os._exit(1)
