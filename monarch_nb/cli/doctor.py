"""`monarch-nb doctor`: what differs between this environment and the nodes', for people or as JSON."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from monarch_nb.cli.tables import print_json
from monarch_nb.config import VERSION
from monarch_nb.errors import PoolError

if TYPE_CHECKING:
    from monarch_nb.client.doctor.diagnosis import Diagnosis

SUMMARY = (
    "compare this environment with every node's",
    "doctor dev",
    "doctor --pool lab",
    "doctor --json > doctor.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `doctor` understands."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="the reservation (default: the only one you hold; with --pool, or when you hold none, the whole pool)",
    )
    parser.add_argument("--json", action="store_true", help="for programs, and for a report of a bug")


def run(options: argparse.Namespace) -> int:
    """Return 0 when nothing differs; with `--json` also say what this environment is when no node answers."""
    try:
        diagnosis = _diagnosis(options)
    except PoolError as error:
        if not options.json:
            raise
        from monarch_nb.worker.environment_report import describe

        here = describe(["monarch-nb", "torch"])
        print_json({"version": VERSION, "healthy": False, "error": str(error), "here": asdict(here)})
        return 1
    if options.json:
        print_json({"version": VERSION, "healthy": diagnosis.healthy, **asdict(diagnosis)})
    else:
        print(diagnosis)
    return 0 if diagnosis.healthy else 1


def _diagnosis(options: argparse.Namespace) -> Diagnosis:
    from monarch_nb import attach, list_reservations
    from monarch_nb.client.doctor.doctor import examine_pool

    if options.name or (not options.is_pool_named and any(info.held_by_me for info in list_reservations(options.pool))):
        return attach(options.name, pool=options.pool).doctor()
    return examine_pool(options.pool)
