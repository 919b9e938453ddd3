"""How processes ended, for people."""

from __future__ import annotations

import signal

from monarch_nb.proto import run_pb2


def signal_name(number: int) -> str:
    """Return "SIGKILL"; real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def describe_death(death: run_pb2.Death) -> str:
    """Return how a rank ended and the likely cause, in one line."""
    if death.HasField("signal"):
        how = f"killed by signal {death.signal} ({signal_name(death.signal)})"
    elif death.HasField("exit_code"):
        how = f"exited with code {death.exit_code}"
    else:
        how = ""
    return ": ".join(filter(None, [how, death.likely_cause])) or "ended"
