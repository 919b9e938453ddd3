"""What a status says of the processes of Monarch's own engine, which are no ranks."""

from __future__ import annotations

from monarch_nb.client.pools.actor_infos import ActorInfo
from monarch_nb.client.pools.infos import RankInfo
from monarch_nb.notebook.output.tables import process_notes, with_processes

MIB = 1 << 20


def info(rank: int, name: str, own_rank: int, pid: int, memory_mib: int) -> ActorInfo:
    kind, memory_bytes = f"__main__.{name.title()}", memory_mib * MIB
    return ActorInfo("monarch", rank, name, kind, name, pid=pid, memory_bytes=memory_bytes, own_rank=own_rank)


def test_each_process_counts_once_in_the_memory_of_its_rank() -> None:
    ranks = [RankInfo(rank, f"node{rank}", 5 + rank, "idle", memory_bytes=100 * MIB) for rank in range(3)]
    actors = [info(0, "trainers", 0, 71, 30), info(0, "judges", 0, 71, 30), info(0, "trainers", 1, 72, 40)]
    actors += [info(1, "trainers", 2, 71, 20), ActorInfo("main", 2, "own", "Own", "o")]  # pids are of a node
    whole = with_processes(ranks, actors)
    assert [rank.memory_bytes // MIB for rank in whole] == [170, 120, 100]
    whose, more = process_notes(whole, actors)
    judges_too = "node0: Monarch has 2 processes with judges 0 (Judges), trainers 0-1 (Trainers)"
    assert whose == f"{judges_too}; they take 70 MiB of the memory"
    assert more == "node1: Monarch has 1 process with trainers 2 (Trainers); they take 20 MiB of the memory"
