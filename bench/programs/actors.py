"""Times of actors, as JSON: `PYTHON actors.py PACKAGE POOL WHAT RANKS TIMES`.

PACKAGE is `monarch`, `monarch_nb`, or `held` for Monarch's engine on two nodes of a reservation: apart from how they
come to their processes, all run the same.
"""

import importlib
import json
import os
import signal
import sys
import time
from contextlib import contextmanager

import numpy

SETTLE_S = 0.5
"""After this time every rank waits."""
WAIT_S = 30

package, pool, what = sys.argv[1:4]
ranks, times = map(int, sys.argv[4:])
library = importlib.import_module("monarch_nb.actor" if package == "monarch_nb" else "monarch.actor")
Actor, endpoint = library.Actor, library.endpoint
if package == "monarch":
    library.unhandled_fault_hook = lambda failure: None
if package in ("monarch_nb", "held"):
    from monarch_nb import reserve
NODES = 2


class Rank(Actor):
    def __init__(self):
        self.messages = 0

    @endpoint
    def nothing(self):
        pass

    @endpoint
    def torch_version(self):
        import torch

        return str(torch.__version__)

    @endpoint
    def keep(self, array):
        self.array = array

    @endpoint
    def add(self, number):
        self.messages += number

    @endpoint
    def total(self):
        return self.messages

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def wait(self):
        time.sleep(WAIT_S)


@contextmanager
def spawned():
    if package == "monarch":
        procs = library.this_host().spawn_procs(per_host={"procs": ranks})
        yield procs.spawn("ranks", Rank)
        procs.stop().get()
    elif package == "held":
        with held() as reservation:
            yield reservation.monarch().spawn_procs(per_host={"procs": ranks // NODES}).spawn("ranks", Rank)
    else:
        reservation = reserve("bench", procs=ranks, pool=pool)
        try:
            yield reservation.mesh.spawn("ranks", Rank)
        finally:
            reservation.release()


@contextmanager
def held():
    reservation = reserve("bench", nodes=NODES, procs=ranks // NODES, pool=pool)
    try:
        yield reservation
    finally:
        reservation.release()


def first():
    """To the first answer on nodes that are held, without workers yet."""
    with held() as reservation:
        found = []
        for _ in range(times):
            began_s = time.perf_counter()
            procs = reservation.monarch().spawn_procs(per_host={"procs": ranks // NODES})
            procs.spawn("ranks", Rank).nothing.call().get()
            found.append(time.perf_counter() - began_s)
            procs.stop().get()
            reservation.stop_mesh("monarch")
        tell(found)


def beside():
    """Calls on nodes that are held, and by turns on as many workers that Monarch starts itself: their times in turn."""
    from monarch.job import ProcessJob

    job = ProcessJob({"hosts": NODES})
    with spawned() as actors:
        procs = job.state(cached_path=None).hosts.spawn_procs(per_host={"procs": ranks // NODES})
        others = procs.spawn("others", Rank)
        both = (lambda: actors.nothing.call().get(), lambda: others.nothing.call().get())
        for each in both:
            each()
        tell([timed(each) for _ in range(times) for each in both])
    job.kill()


def timed(function):
    began_s = time.perf_counter()
    function()
    return time.perf_counter() - began_s


def fresh():
    began_s = time.perf_counter()
    with spawned() as actors:
        actors.torch_version.call().get()
        tell([time.perf_counter() - began_s])


def call():
    with spawned() as actors:
        actors.nothing.call().get()
        tell([timed(lambda: actors.nothing.call().get()) for _ in range(times)])


def array():
    sent = numpy.random.default_rng(0).random(8 << 20)
    with spawned() as actors:
        actors.nothing.call().get()
        tell([timed(lambda: actors.keep.call(sent).get()) for _ in range(times)])


def messages():
    with spawned() as actors:
        actors.nothing.call().get()
        began_s = time.perf_counter()
        for _ in range(times):
            actors.add.broadcast(1)
        assert actors.total.call_one().get() == times
        tell([(time.perf_counter() - began_s) / times])


def death():
    with spawned() as actors:
        pids = [pid for _, pid in actors.pid.call().get()]
        waiting = actors.wait.call()
        time.sleep(SETTLE_S)
        began_s = time.perf_counter()
        os.kill(pids[-1], signal.SIGKILL)
        assert waiting.exception() is not None
        tell([time.perf_counter() - began_s])


def tell(found):
    """Print it at once: to end takes a while where ranks wait."""
    print(json.dumps(found), flush=True)


WHAT = [fresh, first, beside, call, array, messages, death]
{each.__name__: each for each in WHAT}[what]()
