"""What no client of ours could have sent is refused before anybody acts on it."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_nb.allocator.serving import wellformed
from monarch_nb.errors import UsageError
from monarch_nb.proto import allocator_pb2 as pb
from monarch_nb.proto import files_pb2, run_pb2


@pytest.mark.parametrize(
    "request_",
    [
        pb.SpawnRequest(mesh_id="../../.ssh"),
        pb.ReserveRequest(reservation_id="a/b"),
        pb.ReserveRequest(name="dev"),
        pb.HostStoreRequest(reservation_id="a"),
        pb.SpawnRequest(reservation_id="a"),
        pb.SessionRequest(submit=pb.Submit(mesh_id="a", run=run_pb2.RunSpec(number=1))),
        pb.ChangeMembersRequest(makes="../x"),
        pb.DropRequest(run_ids=["fine", "x" * 65]),
        pb.SessionRequest(submit=pb.Submit(run=run_pb2.RunSpec(run_id="."))),
        pb.ExtendRequest(time_s=float("nan")),
        pb.ReserveRequest(reservation_id="a", idle_s=float("inf")),
        pb.ReserveRequest(reservation_id="a", procs=2**32 - 1),
        pb.ReserveRequest(reservation_id="a", name="y" * 100_000),
        pb.ShareRequest(right=-1),  # type: ignore[arg-type]
        files_pb2.ReadFileRequest(path=b"/etc/host\0name"),
        wellformed.Garbled(),
    ],
    ids=lambda request: str(request)[:40].strip() or type(request).__name__,
)
def test_what_is_refused(request_: Any) -> None:
    with pytest.raises(UsageError) as refused:
        wellformed.check(request_)
    assert len(str(refused.value)) < 300


def test_what_is_let_in() -> None:
    run = run_pb2.RunSpec(run_id="0f" * 16, cell=run_pb2.Cell(code="print('\\0../..')" * 1000))
    wellformed.check(pb.SessionRequest(submit=pb.Submit(mesh_id="0e" * 16, run=run, title="x / y")))
    read = wellformed.reading(pb.ReserveRequest)
    assert read(b"") == pb.ReserveRequest()
    assert isinstance(read(b"\xff\xff"), wellformed.Garbled), "no message"
