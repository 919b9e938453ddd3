"""Machines of Lightning AI in the form of its multi-machine training, `MMT`: but they stay, and run again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_nb.client.reservations.reservation import Reservation
from monarch_nb.client.reservations.reserve import reserve
from monarch_nb.client.runs.run import Run
from monarch_nb.provision.lightning import slots_of


class MMT:
    """As `lightning_sdk.MMT.run`, in two steps: what machines, and what to run on them.

    The first `run` asks for the machines; the next ones, also of a later process that says the same, have them at once.

    Args:
        name: of the reservation.
        machine: as in `lightning_sdk.Machine`: "H100_X_8".
        num_machines: how many.
        env: variables of everything that is run.
        teamspace: "owner/teamspace"; where nothing is said, that of this Studio or of $LIGHTNING_TEAMSPACE.
        studio, image, cloud, interruptible: as `lightning_sdk.Job.run` has them.
        time: how long to hold them at most, as in "8h".

    Example:
        >>> mmt = MMT("train", machine="H100_X_8", num_machines=2, env={"NCCL_DEBUG": "INFO"})  # doctest: +SKIP
        >>> mmt.run("torchrun train.py").values  # doctest: +SKIP
        [0, 0]
        >>> mmt.release()  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str,
        machine: str,
        num_machines: int = 2,
        env: Mapping[str, str] | None = None,
        *,
        teamspace: str | None = None,
        studio: str | None = None,
        image: str | None = None,
        cloud: str | None = None,
        interruptible: bool = False,
        time: str | None = None,
    ) -> None:
        self.name, self.machine, self.num_machines, self.env = name, machine, num_machines, dict(env or {})
        self._on = f"lightning:{teamspace}" if teamspace else "lightning"
        told = {"machine": machine, "studio": studio, "image": image, "cloud": cloud}
        self._flags = [f"--{flag}={value}" for flag, value in told.items() if value]
        self._flags += ["--interruptible"] if interruptible else []
        self._time = time
        self._reservation: Reservation | None = None

    def __repr__(self) -> str:
        return f"<MMT {self.name}: {self.num_machines} × {self.machine}>"

    @property
    def reservation(self) -> Reservation:
        """What is held: cells, scripts and actors run on it as well. Asked for when there is none yet.

        Raises:
            MonarchNbError: as `reserve`.
        """
        if self._reservation is None:
            procs, gpus = slots_of(self.machine)
            slots: dict[str, Any] = {"gpus": gpus} if gpus else {"procs": procs}
            self._reservation = reserve(
                self.name, nodes=self.num_machines, on=self._on, on_arguments=self._flags, time=self._time, **slots
            )
        return self._reservation

    def run(self, command: str, *, env: Mapping[str, str] | None = None, timeout_s: float | None = None) -> Run:
        """Run a line of the shell on every machine: see `Reservation.run`.

        Args:
            env: variables for this run alone.
        """
        return self.reservation.run(command, env={**self.env, **(env or {})}, timeout_s=timeout_s)

    def release(self) -> None:
        """Give the machines back."""
        self.reservation.release()
        self._reservation = None
