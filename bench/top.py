"""What it costs a rank to be looked at: 20 looks a second for `%mesh top`, 100 for a flame graph."""

from __future__ import annotations

from bench.harness import Bench, Outcome, Row

RANKS = 2
"""As many as the machine has processors: threads that wait for one would be slower, too."""
_GOAL_SHARE = 0.01
_TRAINING = """
import threading, time, torch
torch.set_num_threads(1)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.Linear(64, 64), torch.nn.GELU())
    def forward(self, x):
        return x + self.layers(x)
model = torch.nn.Sequential(*(Block() for _ in range(8)))
optimizer = torch.optim.AdamW(model.parameters())
def train(seconds):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
def used_by(name):
    return sum(time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
               for thread in threading.enumerate() if thread.name == name)
train(1)
"""
_SHARE = """
began_s = time.monotonic()
before = used_by({name!r})
train({seconds})
after = used_by({name!r})
(after - before) / (time.monotonic() - began_s)
"""


def measure(bench: Bench) -> Outcome:
    """Train while somebody looks."""
    seconds = bench.repeats(20, 5)
    with bench.reserved(1, RANKS) as held:
        mesh = held.mesh
        mesh.run(_TRAINING)
        mesh.top(1.0)
        run = mesh.submit(_SHARE.format(seconds=seconds, name="monarch_nb-looker"))
        while not run.wait(0.01):
            mesh.top(1.0)
        share = max(run.values)
        code = _SHARE.format(seconds=seconds, name="monarch_nb-python-profile")
        profiled = mesh.run(code, instruments={"python-profile": {}})
        profile_share = max(profiled.values)
    said = f"{share:.2%} of a rank's time; a flame graph {profile_share:.2%}"
    return Outcome(said, 0 < share <= _GOAL_SHARE)


ROWS = (
    Row(
        "top",
        f"`%mesh top` while {RANKS} ranks train",
        "≤ 1 % of a rank's time",
        "processor time of the thread that looks, in a loop of small steps, with many frames; a flame graph looks five "
        "times as often",
        measure,
    ),
)
