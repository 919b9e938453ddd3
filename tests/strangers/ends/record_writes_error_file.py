# torchrun's error file: what @record leaves there, and the hook is called all the same.
# procs: 2
import atexit
import json
import os
import sys
import time
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

ERROR_FILE = os.environ["TORCHELASTIC_ERROR_FILE"]


def look():
    with open(ERROR_FILE) as file:
        message = json.load(file)["message"]
    print(message["message"], sorted(message["extraInfo"]), flush=True)
    Path(f"done-{os.environ['RANK']}").touch()  # torchrun ends the others as soon as one has ended
    while len(list(Path().glob("done-*"))) < 2:
        time.sleep(0.01)


@record
def main():
    raise ValueError(f"bad batch of {os.environ['RANK']}")


print(os.path.exists(ERROR_FILE))
atexit.register(look)
sys.excepthook = lambda kind, error, trace: print("hook", error)
main()
