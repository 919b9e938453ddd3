# Tensors in shared memory reach forked and spawned processes.
import torch
import torch.multiprocessing as mp


def add(tensor):
    tensor.add_(1)


if __name__ == "__main__":
    shared = torch.zeros(3).share_memory_()
    for method in ("fork", "spawn"):
        process = mp.get_context(method).Process(target=add, args=(shared,))
        process.start()
        process.join()
        print(method, process.exitcode, shared.tolist())
