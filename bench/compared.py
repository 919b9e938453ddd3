"""What `%mesh diff` of a large model takes, beside hashing the same bytes by hand."""

from __future__ import annotations

from bench.harness import Bench, Outcome, Row, duration, median, seconds

RANKS, TENSORS, TENSOR_ELEMENTS = 4, 64, 1 << 22
_MOST = 2.0
_MODEL = f"""
import hashlib, torch
model = {{f"layer{{n}}": torch.full(({TENSOR_ELEMENTS},), float(n)) for n in range({TENSORS})}}
"""
_BY_HAND = "for tensor in model.values(): hashlib.sha256(memoryview(tensor.numpy())).digest()"


def measure(bench: Bench) -> Outcome:
    """Compare a model that is equal on all ranks, and hash it on all ranks."""
    with bench.reserved(1, RANKS) as reservation:
        mesh = reservation.mesh
        mesh.run(_MODEL)
        ours, theirs = [], []
        for _ in range(bench.repeats(5, 3)):
            ours.append(seconds(lambda: mesh.diff("model")))
            theirs.append(seconds(lambda: mesh.run(_BY_HAND)))
    ratio = median(ours) / median(theirs)
    return Outcome(
        duration(median(ours)), ratio <= _MOST, f"hashing {duration(median(theirs))}", f"{ratio:.2f} times as long"
    )


ROWS = [
    Row(
        "compared",
        f"`%mesh diff` of {TENSORS * TENSOR_ELEMENTS * 4 / 2**30:.0f} GB on {RANKS} ranks that are equal",
        f"at most {_MOST:.0f} times as long as hashing it",
        f"{TENSORS} tensors of 16 MB on the CPU of each rank, median of the repeats. By hand: a cell that takes the "
        "SHA-256 of each tensor on every rank.",
        measure,
    )
]
