"""The names of Monarch: each is either here or explained, and the docs say which."""

import re
from pathlib import Path

import pytest

from monarch_nb.actor.left_out import LEFT_OUT, explain

DOCS = Path(__file__).parents[3] / "docs" / "actors.md"

MONARCH_0_7 = [
    *("Accumulator", "Actor", "ActorError", "ChannelTransport", "Channel", "Context", "Endpoint", "Extent", "Future"),
    *("HostMesh", "MeshFailure", "Point", "Port", "PortReceiver", "ProcId", "ProcMesh", "Uid", "ValueMesh"),
    *("as_endpoint", "attach", "attach_to_workers", "concurrent_endpoint", "config", "context", "current_actor_name"),
    *("current_rank", "current_size", "debug_controller", "default_bootstrap_cmd", "enable_transport", "endpoint"),
    *("get_meter", "get_or_spawn_controller", "returns_future", "run_worker_loop_forever"),
    *("run_worker_loop_until_shutdown", "send", "shutdown_context", "span", "start_worker_loop_forever", "this_host"),
    *("this_proc", "traced", "unhandled_fault_hook"),
]


def documented(section: str) -> list[str]:
    """The names in the first column of a section's table."""
    (text,) = (part for part in DOCS.read_text().split("\n## ") if part.startswith(f"{section}\n"))
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_the_docs_have_every_name_of_monarch_once() -> None:
    assert len(MONARCH_0_7) == 44
    here = documented("Names")
    assert sorted([*here, *(name for name in LEFT_OUT if name in MONARCH_0_7)]) == sorted(MONARCH_0_7)


def test_the_docs_say_what_to_use_in_place_of_what_is_left_out() -> None:
    assert sorted(documented("Left out, and what to use instead")) == sorted(LEFT_OUT)


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_is_left_out_is_explained(name: str) -> None:
    assert explain(name) == f"monarch_nb.actor leaves {name} out: {LEFT_OUT[name]}"


def test_what_monarch_does_not_have_either_is_not_explained() -> None:
    assert explain("Actor") is None
    assert explain("Aktor") is None
