"""What is compared beside values: the random states of a rank, and the environment that it computes in."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import os
import platform
import random
import subprocess
import sys
from typing import Any

from monarch_nb.config import patience
from monarch_nb.ground.cpus import usable_cpus
from monarch_nb.worker.environment_report import describe

_GIT_TIMEOUT_S = patience(10.0)
_PROCESSORS = 1  # NVML_CLOCK_SM
_OF_A_RANK = frozenset(
    (
        *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "CUDA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "HOSTNAME", "PWD", "OLDPWD", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"),
        *(
            "SLURMD_NODENAME",
            "SLURM_TASK_PID",
            "SLURM_TOPOLOGY_ADDR",
            "SLURM_GTIDS",
            "POD_NAME",
            "POD_IP",
            "PET_NODE_RANK",
        ),
    )
)
"""Variables in which ranks are meant to differ."""
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL")


def random_states() -> dict[str, Any]:
    """Return a digest of the state of each random generator."""
    states: dict[str, Any] = {"python": _digest(random.getstate())}
    if (numpy := sys.modules.get("numpy")) is not None:
        state = numpy.random.get_state(legacy=False)["state"]
        states["numpy"] = _digest((state["key"].tobytes(), state["pos"]))
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = _digest(torch.get_rng_state().tolist())
        for kind in ("cuda", "xpu", "mps"):
            device = getattr(torch, kind, None)
            if device is not None and device.is_available() and getattr(device, "is_initialized", lambda: True)():
                states[f"torch.{kind}"] = _digest(device.get_rng_state().tolist())
    return states


def environment(salt: str) -> dict[str, Any]:
    """Return what a rank computes with. Secrets are compared, but not told.

    Args:
        salt: new for each comparison: nobody can try secrets against a digest that was shown.
    """
    report = describe()
    return {
        "python": report.python,
        "executable": report.executable,
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}, {usable_cpus()} cores",
        "driver": report.driver,
        "cuda": report.cuda,
        "torch": _torch_settings(),
        "gpus": _gpus(),
        "code": _git_state(),
        "variables": {name: _told(name, text, salt) for name, text in sorted(os.environ.items()) if _is_shared(name)},
        "packages": _packages(),
    }


def _is_shared(name: str) -> bool:
    return name not in _OF_A_RANK and not name.startswith("MONARCH_NB_")


def _told(name: str, text: str, salt: str) -> str:
    return f"(secret, {_digest((salt, text))})" if any(word in name.upper() for word in _SECRET) else text


def _packages() -> dict[str, str]:
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and name not in found:  # the first on the path is the one that is imported
            found[name] = distribution.version
    return dict(sorted(found.items()))


def _torch_settings() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
    }


def _gpus() -> dict[str, Any]:
    """Return the rank's own GPU, when torch has it open: asking must not open one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    seen = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts: dict[str, Any] = {"name": seen.name, "memory": seen.total_memory}
    return facts | {"clock_mhz_greatest": _greatest_clock_mhz(f"GPU-{seen.uuid}")}


def _greatest_clock_mhz(uuid: str) -> int | None:
    """Return up to how many MHz the GPU's processors are allowed to run; None where NVML does not say it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    device, clock_mhz = ctypes.c_void_p(), ctypes.c_uint()
    try:
        if nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device)) != 0:
            return None
        failed = nvml.nvmlDeviceGetMaxClockInfo(device, _PROCESSORS, ctypes.byref(clock_mhz))
        return None if failed else clock_mhz.value
    finally:
        nvml.nvmlShutdown()


def _git_state() -> dict[str, str]:
    """Return the commit of the code in the working directory, and a digest of what has changed since."""
    try:
        commit, changes = (_git("rev-parse", "HEAD"), _git("diff", "HEAD"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit.strip(), "changes": _digest(changes) if changes else "none"}


def _git(*words: str) -> str:
    command = ["git", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_GIT_TIMEOUT_S, check=True)
    return done.stdout


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode(errors="surrogatepass")).hexdigest()[:12]
