"""What people get wrong in their first hour, in a real kernel: each error says what to type."""

from __future__ import annotations

from integration.kernels import Kernel
from monarch_nb.ground.escapes import strip


def shown(kernel: Kernel, cell: str) -> list[str]:
    """Return the lines that a cell shows, without colours."""
    return strip(kernel.run(cell)).splitlines()


def test_a_name_of_the_other_side(kernel: Kernel) -> None:
    assert shown(kernel, "print(rank)")[-1] == "rank is a variable of the ranks: put %%mesh at the top of the cell"
    kernel.run("%%mesh\nmodel = 'a model'")
    assert shown(kernel, "print(model)")[-1] == (
        "model is a variable of the ranks: put %%mesh at the top of the cell, or fetch it: model = %mesh pull model"
    )
    assert kernel.run("model = %mesh pull model\nprint(model[3])").strip() == "a model"
    kernel.run("lr = 0.1")
    assert shown(kernel, "%%mesh\nprint(lr)")[-1] == (
        "lr is a variable of the kernel: %mesh push lr sends it to the ranks"
    )
    kernel.run("%mesh push lr")
    assert kernel.run("%%mesh\nprint(lr)") == "[0-3] 0.1"
    assert shown(kernel, "%%mesh\nmesh.ranks")[-1] == "mesh belongs to the kernel: use it in a cell without %%mesh"
    assert kernel.run("dev.name, len(mesh.ranks)") == "('dev', 4)"


def test_no_process_group(kernel: Kernel) -> None:
    said = "there is no process group: call dist.init_process_group() first"
    for call in ("dist.all_reduce(x)", "dist.get_rank()", "torch.nn.parallel.DistributedDataParallel(net)"):
        lines = shown(kernel, f"%%mesh\nx, net = torch.ones(1), torch.nn.Linear(1, 1)\n{call}")
        assert lines[0].endswith(f": {said}"), lines
        assert lines[-1] == f"NoProcessGroup: {said}", lines
        assert f"----> 2 {call}" in "\n".join(lines), lines
        assert not any("site-packages" in line or "c10d" in line for line in lines), lines
    assert kernel.run("%%mesh\ndist.init_process_group()\ndist.all_reduce(x)\nprint(x.item())") == "[0-3] 4.0"
