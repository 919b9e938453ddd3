"""Times of ipyparallel, as JSON: `PYTHON ipyparallel_engines.py ENGINES CALLS PUSHES PROFILE_DIRECTORY`."""

import json
import sys
import time

import ipyparallel
import numpy

engines, calls, pushes = map(int, sys.argv[1:4])
cluster = ipyparallel.Cluster(n=engines, engines="local", log_level=40, profile_dir=sys.argv[4])
with cluster as client:
    view = client[:]
    array = numpy.random.default_rng(0).random(8 << 20)

    def timed(function):
        began_s = time.perf_counter()
        function()
        return time.perf_counter() - began_s

    view.execute("pass", block=True)
    call_s = [timed(lambda: view.execute("pass", block=True)) for _ in range(calls)]
    push_s = [timed(lambda: view.push({"array": array}, block=True)) for _ in range(pushes)]
print(json.dumps({"call_s": call_s, "push_s": push_s}))
