"""How processes ended, for people."""

from __future__ import annotations

from monarch_nb.proto import run_pb2

_CAUSES = {
    "SIGKILL": "killed by another process or, with a memory limit, by its OOM killer (see dmesg)",
    "SIGSEGV": "segmentation fault in native code",
    "SIGBUS": "bus error: often a full /dev/shm (DataLoader workers) or a truncated mapped file",
    "SIGABRT": "aborted by native code (a failed assertion, std::terminate, NCCL or CUDA error)",
    "SIGFPE": "arithmetic fault in native code",
    "SIGILL": "illegal instruction: a library built for another CPU",
    "SIGTERM": "asked to end by another process (a scheduler, or kill)",
}
_SIGNALS = (
    *("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1"),
    *("SEGV", "USR2", "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP"),
    *("TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR"),
    "SYS",
)
"""Linux's, from 1 on: ranks run there, and a client's own system may have other numbers."""
_FIRST_REAL_TIME = 34


def signal_name(number: int) -> str:
    """Return what a signal of a rank is called: "SIGKILL". Real-time signals have no names of their own."""
    if 1 <= number <= len(_SIGNALS):
        return f"SIG{_SIGNALS[number - 1]}"
    return f"SIGRTMIN+{number - _FIRST_REAL_TIME}"


def likely_cause(number: int) -> str:
    """Return why a process gets a signal, when nothing else is known of it."""
    return _CAUSES.get(signal_name(number), "killed by another process")


def describe_signal(number: int) -> str:
    """Return which signal has killed a process."""
    return f"killed by signal {number} ({signal_name(number)})"


def describe_death(death: run_pb2.Death) -> str:
    """Return how a rank ended and the likely cause, in one line."""
    if death.HasField("signal"):
        how = describe_signal(death.signal)
    elif death.HasField("exit_code"):
        how = f"exited with code {death.exit_code}"
    else:
        how = ""
    return ": ".join(filter(None, [how, death.likely_cause])) or "ended"
