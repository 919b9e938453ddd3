"""Programs that people train with: as a script, and as a cell that is run again."""

from __future__ import annotations

import time
from importlib.util import find_spec

from bench.harness import (
    PROGRAMS,
    Bench,
    CannotRun,
    Outcome,
    Row,
    Shape,
    alternately,
    compared,
    duration,
    numbers_after,
    program,
    seconds,
)
from monarch_nb.client.connections.events import Event, Text

RANKS = 4


def script(bench: Bench) -> Outcome:
    with bench.reserved(1, RANKS) as reservation:

        def ours() -> float:
            told: list[str] = []

            def note(event: Event) -> None:
                if isinstance(event, Text):
                    told.append(event.text)

            began_s = time.time()
            reservation.mesh.run_script(str(PROGRAMS / "ddp.py"), listener=note)
            ends_s = numbers_after("first", "".join(told))
            if len(ends_s) != RANKS:
                raise CannotRun(f"only {len(ends_s)} of {RANKS} ranks said when their first step was over")
            return max(ends_s) - began_s

        def torchruns() -> float:
            began_s = time.time()
            return max(bench.torchrun("ddp.py", "first", RANKS)) - began_s

        ours()
        our_s, their_s = alternately(bench, ours, torchruns)
    return Outcome(duration(our_s), their_s / our_s >= 10, f"torchrun {duration(their_s)}", compared(our_s, their_s))


def second_fit(bench: Bench) -> Outcome:
    if find_spec("lightning") is None:
        raise CannotRun("lightning is not installed here: pip install '.[lightning]'")
    text = program("fit.py")
    with bench.reserved(1, RANKS) as reservation:

        def torchruns() -> float:
            began_s = time.time()
            return max(bench.torchrun("fit.py", "fitted", RANKS)) - began_s

        reservation.mesh.run(text)
        our_s, their_s = alternately(bench, lambda: seconds(lambda: reservation.mesh.run(text)), torchruns)
    return Outcome(duration(our_s), their_s / our_s >= 20, f"torchrun {duration(their_s)}", compared(our_s, their_s))


EVERY_S = 600.0
STEPS = 60


def saved(bench: Bench) -> Outcome:
    """A save lasts so long that it can be told from noise; what it costs is shared out over the time between two."""
    windows = bench.repeats(7, 3)
    with bench.reserved(1, RANKS) as reservation:
        mesh = reservation.mesh
        mesh.run(program("saved_training.py"))

        def window(*, save: bool) -> float:
            run = mesh.submit(f"train({STEPS})", want_value=True)
            if save:
                mesh.save_now("a benchmark", 60)
            return max(run.result())

        def arm() -> None:
            mesh.autosave(bench.directory / "saves", every=EVERY_S, background=True)

        arm()
        window(save=True)  # the first one imports what it needs
        plain_s, armed_s, saving_s = [], [], []
        for _ in range(windows):
            mesh.autosave_off()
            plain_s.append(window(save=False))
            arm()
            armed_s.append(window(save=False))
            saving_s.append(window(save=True))
        mesh.autosave_off()
    plain, armed, saving = min(plain_s), min(armed_s), min(saving_s)
    lost = max(0.0, saving - armed) / EVERY_S + max(0.0, armed / plain - 1)
    told = f"{lost:.2%} ({(saving - armed) * 1e3:.0f} ms a save, {armed / plain - 1:+.2%} while none goes on)"
    return Outcome(told, lost <= 0.01, f"{plain / STEPS * 1e3:.1f} ms a step without")


ROWS = [
    Row(
        "autosave",
        f"what `%mesh save --every 10m --async` takes from a training on {RANKS} ranks",
        "at most 1%",
        f"The time of {STEPS} steps of DDP with Adam (25 MB with the optimizer's state), fastest of 7 without saves, "
        "of 7 with saves armed, and of 7 with one save among them. What a save costs is divided by 10 minutes. The "
        "program is `bench/programs/saved_training.py`.",
        saved,
        Shape(1, RANKS),
    ),
    Row(
        "script",
        f"`%mesh run ddp.py` on {RANKS} ranks, warm, to the end of the first step, against torchrun running the same",
        "at least 10 times faster",
        "Ours: the time from the call of `mesh.run_script()`, which forks fresh processes, to the end of the first "
        "optimizer step on the last rank, as the ranks print it, median of 9. torchrun: the time from its start to the "
        "same moment, median of 3. The script is `bench/programs/ddp.py`: DDP with Gloo.",
        script,
        Shape(1, RANKS),
    ),
    Row(
        "fit",
        f"the second `fit` of a small LightningModule on {RANKS} ranks, against torchrun running the same script",
        "at least 20 times faster",
        "Ours: the time of `mesh.run(program)` where the same cell was run before, median of 9. The cell makes the "
        "module, the data and the `Trainer` again, and calls `fit`. torchrun: the time from its start to the end of "
        "`fit` on the last rank, median of 3. The program is `bench/programs/fit.py`: one epoch of 4 steps with "
        "DDP.",
        second_fit,
        Shape(1, RANKS),
    ),
]
