"""What TorchTitan 0.2.2 does with CUDA only, done on CPUs, so that `titan.ipynb` runs on any machine.

`prepare()` stands in for five things, and each says why. Nothing of it is needed, or done, where there is a GPU.
"""

from __future__ import annotations

import os
import resource
import sys
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch._utils


def prepare() -> None:
    """Import TorchTitan, for the processors of this machine if it has no GPU. A second call does nothing."""
    if torch._utils._get_available_device_type() or "torchtitan" in sys.modules:
        return
    # 1. A kernel for experts is compiled by Triton at import. CPU builds of torch have no Triton, llama3 no experts.
    sys.modules["torchtitan.models.moe.kernels"] = _without_triton()
    # 2. Its device is the one that torch names first, and "cuda" when that names none: it has to name the processors.
    with patch.multiple(torch._utils, _get_available_device_type=lambda: "cpu", _get_device_module=lambda _: _cpu()):
        import torchtitan.train  # noqa: F401
    # 3. FSDP multiplies gradients while it adds them, which NCCL can and Gloo can not. The factor is 1: adding will do.
    from torchtitan.models.llama3.infra import parallelize

    divide = parallelize.disable_fsdp_gradient_division

    def add_only(model: torch.nn.Module) -> None:
        divide(model)
        for module in model.modules():
            if isinstance(module, parallelize.FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    parallelize.disable_fsdp_gradient_division = add_only


def _without_triton() -> ModuleType:
    def generate_permute_indices(*_: Any, **__: Any) -> None:
        raise NotImplementedError("experts need Triton, and with it a GPU: take a model without, such as llama3")

    module = ModuleType("torchtitan.models.moe.kernels")
    module.__dict__["generate_permute_indices"] = generate_permute_indices
    return module


def _cpu() -> SimpleNamespace:
    """Return `torch.cpu`, and what TorchTitan asks of `torch.cuda` besides."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def memory_stats(_: Any) -> dict[str, int]:
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"active_bytes.all.peak": peak_bytes, "reserved_bytes.all.peak": peak_bytes}

    return SimpleNamespace(
        **{
            **vars(torch.cpu),
            # 4. Its barrier wants the number of a device, and torch.cpu says "cpu".
            "current_device": lambda: 0,
            # 5. It logs the memory of the device: here the process's, and the machine's.
            "get_device_name": lambda _: "CPU",
            "get_device_properties": lambda _: SimpleNamespace(total_memory=memory_bytes),
            "memory_stats": memory_stats,
            "reset_peak_memory_stats": lambda: None,
            "empty_cache": lambda: None,
        }
    )
