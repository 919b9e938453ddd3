"""What a status says of the processes of Monarch's own engine, which are no ranks."""

from __future__ import annotations

from monarch_nb.client.pools.facts.actor_infos import ActorInfo
from monarch_nb.client.pools.facts.infos import RankInfo
from monarch_nb.notebook.output.tables import process_notes, with_processes

MIB = 1 << 20


def info(rank: int, name: str, pid: int, memory_mib: int) -> ActorInfo:
    return ActorInfo("monarch", rank, name, f"__main__.{name.title()}", name, pid=pid, memory_bytes=memory_mib * MIB)


def test_each_process_counts_once_in_the_memory_of_its_rank() -> None:
    ranks = [RankInfo(rank, f"node{rank}", 5 + rank, "idle", memory_bytes=100 * MIB) for rank in range(3)]
    actors = [info(0, "trainers", 71, 30), info(0, "judges", 71, 30), info(0, "trainers", 72, 40)]
    actors += [info(1, "trainers", 71, 20), ActorInfo("main", 2, "own", "Own", "o")]  # nodes have pids of their own
    whole = with_processes(ranks, actors)
    assert [rank.memory_bytes // MIB for rank in whole] == [170, 120, 100]
    assert process_notes(whole, actors) == [
        "node0: Monarch has 2 processes with judges (Judges), trainers (Trainers); they take 70 MiB of the memory",
        "node1: Monarch has 1 process with trainers (Trainers); they take 20 MiB of the memory",
    ]
