"""The names of Monarch: each is either here or explained, and the docs say which."""

import pickle
import re
from pathlib import Path

import pytest

import monarch_nb.actor
from monarch_nb.actor import HostMesh, ProcMesh
from monarch_nb.actor.left_out import LEFT_OUT, LEFT_OUT_METHODS

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

MESHES_OF_MONARCH_0_7 = {
    HostMesh: [
        *("initialized", "is_fake_in_process", "region", "shutdown", "spawn_procs", "stop", "stream_logs"),
        *("sync_workspace", "with_python_executable", "extent", "flatten", "rename", "size", "sizes", "slice", "split"),
    ],
    ProcMesh: [
        *("activate", "from_host_mesh", "host_mesh", "initialized", "logging_option", "rank_tensor", "rank_tensors"),
        *("spawn", "stop", "sync_workspace", "to_table"),
        *("extent", "flatten", "rename", "size", "sizes", "slice", "split"),
    ],
}
"""What their objects have in public."""


def documented(section: str, names: str = r"`(\w+)`") -> list[str]:
    """The names in the first column of a section's table."""
    (text,) = (part for part in DOCS.read_text().split("\n## ") if part.startswith(f"{section}\n"))
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return [name for cell in cells for name in re.findall(names, cell)]


def test_the_docs_have_every_name_of_monarch_once() -> None:
    assert len(MONARCH_0_7) == 44
    here = documented("Names")
    assert sorted([*here, *(name for name in LEFT_OUT if name in MONARCH_0_7)]) == sorted(MONARCH_0_7)
    section = "Left out, and what to use instead"
    assert sorted({*documented(section)} - {"HostMesh"}) == sorted(LEFT_OUT)
    assert sorted(documented(section, r"`(\w+\.\w+)`")) == sorted(LEFT_OUT_METHODS)


def test_a_mesh_has_what_one_of_monarch_has_or_says_what_to_use_instead() -> None:
    named = [(kind, name) for kind, names in MESHES_OF_MONARCH_0_7.items() for name in names]
    lacking = [f"{kind.__name__}.{name}" for kind, name in named if not hasattr(kind, name)]
    assert sorted(lacking) == sorted(LEFT_OUT_METHODS)
    hosts = HostMesh.of({"hosts": 2}, ["a:1", "b:1"])
    with pytest.raises(AttributeError, match=r"leaves HostMesh.stop out: hosts belong to their reservation"):
        hosts.stop()
    with pytest.raises(AttributeError, match=r"leaves ProcMesh.to_table out: there is no tensor engine"):
        ProcMesh.of("procs", {"gpus": 1}, []).to_table()
    with pytest.raises(AttributeError, match="'HostMesh' object has no attribute 'stopp'"):
        hosts.stopp()
    assert pickle.loads(pickle.dumps(hosts)).extent == hosts.extent


def test_imports_and_attributes_are_told_what_to_use_instead() -> None:
    for name in monarch_nb.actor.__all__:
        assert hasattr(monarch_nb.actor, name)
    assert set(MONARCH_0_7) <= {*monarch_nb.actor.__all__, *LEFT_OUT}
    with pytest.raises(ImportError, match=r"leaves enable_transport out: messages go through the allocators"):
        exec("from monarch_nb.actor import enable_transport")
    with pytest.raises(ImportError, match="cannot import name 'Aktor'"):
        exec("from monarch_nb.actor import Aktor")
    with pytest.raises(AttributeError, match=r"leaves enable_transport out"):
        monarch_nb.actor.enable_transport  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'Aktor'"):
        monarch_nb.actor.Aktor  # noqa: B018
