"""Actors, beside those of Monarch 0.7: both run the same program, one after the other, several times."""

from __future__ import annotations

import functools

from bench.harness import ONE_NODE, RANKS, Bench, Outcome, Row, Shape, compared, duration, median

MANY_RANKS = 32
CALLS = {1: (2000, 500), RANKS: (1000, 200), MANY_RANKS: (200, 50)}
MESSAGES = (50_000, 20_000)


def round_trip(bench: Bench, *, ranks: int) -> Outcome:
    ours, theirs = _both(bench, "call", ranks, bench.repeats(*CALLS[ranks]))
    return _not_slower(ours, theirs)


def fresh(bench: Bench) -> Outcome:
    bench.warm_pool(1, RANKS)
    bench.actors("monarch_nb", "fresh", RANKS, 1)  # the node's template may be importing torch still
    ours, theirs = _both(bench, "fresh", RANKS, 1)
    return Outcome(duration(ours), theirs / ours >= 10, f"Monarch {duration(theirs)}", compared(ours, theirs))


def array(bench: Bench) -> Outcome:
    ours, theirs = _both(bench, "array", RANKS, bench.pushes)
    return _not_slower(ours, theirs)


def messages(bench: Bench) -> Outcome:
    ours, theirs = _both(bench, "messages", 1, bench.repeats(*MESSAGES))
    return Outcome(f"{1 / ours:,.0f}", 1 / ours >= 20_000, f"Monarch {1 / theirs:,.0f}", compared(ours, theirs))


def death(bench: Bench) -> Outcome:
    ours, theirs = _both(bench, "death", RANKS, 1)
    return Outcome(duration(ours), ours <= 1, f"Monarch {duration(theirs)}", compared(ours, theirs))


def _both(bench: Bench, what: str, ranks: int, times: int) -> tuple[float, float]:
    """Return the medians of ours and of Monarch's; alternating, because other load on the machine comes and goes."""
    bench.warm_pool(1, max(ranks, RANKS))
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(bench.repeats(3, 1)):
        ours += bench.actors("monarch_nb", what, ranks, times)
        theirs += bench.actors("monarch", what, ranks, times)
        bench.say(f"ours {duration(median(ours))}, Monarch {duration(median(theirs))}")
    return median(ours), median(theirs)


def held_first(bench: Bench) -> Outcome:
    bench.warm_pool(2, RANKS)
    took = median(bench.actors("held", "first", 4, bench.repeats(5, 3)))
    return Outcome(duration(took), took <= 1.5)


def held_call(bench: Bench) -> Outcome:
    bench.warm_pool(2, RANKS)
    times = bench.actors("held", "beside", 4, bench.repeats(3000, 1000))
    held, own = median(times[::2]), median(times[1::2])
    return Outcome(duration(held), held <= 1.05 * own, f"Monarch {duration(own)}", compared(held, own))


def _not_slower(ours: float, theirs: float) -> Outcome:
    return Outcome(duration(ours), ours <= theirs, f"Monarch {duration(theirs)}", compared(ours, theirs))


def _round_trip_row(ranks: int) -> Row:
    which = "one rank" if ranks == 1 else f"{ranks} ranks of a node"
    return Row(
        f"actor-call-{ranks}",
        f"actors: round trip of an empty endpoint on {which}, against Monarch 0.7",
        "not slower",
        f"The median of {3 * CALLS[ranks][0]} calls of `ranks.nothing.call().get()`, one after the other, in three "
        "programs. They alternate with the same program with Monarch (`bench/programs/actors.py`).",
        functools.partial(round_trip, ranks=ranks),
        ONE_NODE if ranks <= RANKS else Shape(1, ranks),
    )


ROWS = [
    *map(_round_trip_row, CALLS),
    Row(
        "actor-fresh",
        f"actors: {RANKS} fresh ranks and a spawned actor, to its first reply with torch imported, against Monarch 0.7",
        "at least 10 times faster",
        "Ours: the time from the call of `reserve()` on a warm pool that holds nothing. Monarch: the time from the "
        "call of `this_host().spawn_procs()`. Both end at the return of the first call, of an endpoint that imports "
        "torch. Both programs have imported their library before. Medians of 3.",
        fresh,
    ),
    Row(
        "actor-array",
        f"actors: an endpoint called with a 64 MB array on {RANKS} ranks of a node, against Monarch 0.7",
        "not slower",
        "The median of 27 calls of an endpoint that keeps 64 MiB of random numbers.",
        array,
    ),
    Row(
        "actor-messages",
        "actors: messages a second into one actor, against Monarch 0.7",
        "at least 20,000",
        f"{MESSAGES[0]:,} broadcasts of a number to one actor that adds it up, and then a call that returns the sum. "
        "The time is that from the first broadcast to the return of the call, median of 3.",
        messages,
    ),
    Row(
        "actor-death",
        f"actors: death of one of {RANKS} ranks, until a call that waits for all of them raises, against Monarch 0.7",
        "at most 1 s",
        "All ranks are in an endpoint when the bench kills one of them with SIGKILL, median of 3. Our call waits half "
        "a second after a death for the answers of the other ranks.",
        death,
    ),
    Row(
        "engine-first",
        "Monarch's engine on 2 nodes × 2: `dev.monarch()` to the first answer of an actor",
        "at most 1.5 s",
        "The time from the call of `dev.monarch()` on held nodes without workers to the return of the first call of an "
        "empty endpoint on 4 processes. The program has imported Monarch before. Median of 5.",
        held_first,
        Shape(2, RANKS),
    ),
    Row(
        "engine-call",
        "Monarch's engine on 2 nodes × 2: round trip of an empty endpoint, against Monarch's own workers",
        "at most 1.05 times as long",
        "The median of 3,000 calls of `ranks.nothing.call().get()`. In the same program, each alternates with a call "
        "on two workers of Monarch's `ProcessJob`, with 2 processes each.",
        held_call,
        Shape(2, RANKS),
    ),
]
