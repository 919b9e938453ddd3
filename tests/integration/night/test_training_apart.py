"""Ranks that train a model each are told so, in one line, once in the life of a mesh."""

from __future__ import annotations

from integration.live import Recorder
from monarch_nb.client.connections import events
from monarch_nb.client.meshes.mesh import Mesh

TRAIN = """
import torch
model = torch.nn.Linear(3, 1)
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()
"""
IN_A_GROUP = "dist.init_process_group('gloo'); model = torch.nn.parallel.DistributedDataParallel(model)"


def lines(mesh: Mesh, code: str) -> list[str]:
    """Run a cell; return what its listeners are told of training apart."""
    recorder = Recorder()
    mesh.run(code, listener=recorder)
    return [notice.text for notice in recorder.of(events.Notice) if "model" in notice.text]


def test_one_line_once_and_none_where_it_is_meant(mesh: Mesh) -> None:
    alone = TRAIN.format(wrap="")
    assert lines(mesh.slice(procs=0), TRAIN.format(wrap="if rank: model = torch.nn.Linear(3, 2)")) == []
    assert lines(mesh, f"if rank == 3:\n    {alone.strip().replace(chr(10), chr(10) + '    ')}") == []
    assert lines(mesh, TRAIN.format(wrap=IN_A_GROUP)) == []
    [line] = lines(mesh, f"dist.destroy_process_group()\n{alone}")
    assert line.startswith("8 ranks each train a model of their own (no process group): ")
    assert "\n" not in line
    assert lines(mesh, alone) == []
