"""Times of Ray Train on a cluster whose nodes are all this machine: `PYTHON ray_nodes.py NODES PROCS DIRECTORY`.

It writes the cluster's address; then, for each line that it reads, the seconds from the call of `TorchTrainer.fit` to
the end of the first all-reduce on the last rank. It ends when nobody writes any more.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Ray prints

import ray  # noqa: E402
import ray.train.torch  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

nodes, procs = map(int, sys.argv[1:3])
directory = Path(sys.argv[3])
small = {"object_store_memory": 80_000_000, "include_dashboard": False}


def answer(text):
    answers.write(f"{text}\n")
    answers.flush()


def loop(config):
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    (Path(config["ended"]) / str(dist.get_rank())).write_text(str(time.time()))


def train(number):
    ended = directory / str(number)
    ended.mkdir()
    trainer = ray.train.torch.TorchTrainer(
        loop,
        train_loop_config={"ended": str(ended)},
        scaling_config=ray.train.ScalingConfig(num_workers=nodes * procs, resources_per_worker={"CPU": 1}),
        run_config=ray.train.RunConfig(storage_path=str(directory / "results")),
    )
    began_s = time.time()
    trainer.fit()
    return max(float(path.read_text()) for path in ended.iterdir()) - began_s


def patiently(start, *arguments, **more):
    """Ray gives a node's agent 15 s to come up; a machine that is busy with other things needs longer at times."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return start(*arguments, **more)
    return start(*arguments, **more)


cluster = patiently(Cluster, True, head_node_args={"num_cpus": 0, "temp_dir": str(directory / "ray"), **small})
for _ in range(nodes):
    patiently(cluster.add_node, False, num_cpus=procs, object_store_memory=small["object_store_memory"])
cluster.wait_for_nodes(120)
ray.init(cluster.address, log_to_driver=False)
answer(cluster.address)
for number, _ in enumerate(sys.stdin):
    answer(train(number))
ray.shutdown()
cluster.shutdown()
