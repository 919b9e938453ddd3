"""Times of PyTorch Monarch, as JSON: `PYTHON monarch_procs.py PROCS CALLS PUSHES`."""

import json
import sys
import time

import numpy
from monarch.actor import Actor, endpoint, this_host


class Rank(Actor):
    @endpoint
    def nothing(self) -> None:
        pass

    @endpoint
    def keep(self, array) -> None:
        self.array = array


def main() -> None:
    count, calls, pushes = map(int, sys.argv[1:4])
    procs = this_host().spawn_procs(per_host={"procs": count})
    ranks = procs.spawn("ranks", Rank)
    array = numpy.random.default_rng(0).random(8 << 20)

    def timed(function):
        began_s = time.perf_counter()
        function()
        return time.perf_counter() - began_s

    ranks.nothing.call().get()
    call_s = [timed(lambda: ranks.nothing.call().get()) for _ in range(calls)]
    push_s = [timed(lambda: ranks.keep.call(array).get()) for _ in range(pushes)]
    procs.stop().get()
    print(json.dumps({"call_s": call_s, "push_s": push_s}), flush=True)


main()
