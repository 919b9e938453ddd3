# A program may choose its start method, once.
import multiprocessing

import torch.multiprocessing

print(multiprocessing.get_start_method(allow_none=True), multiprocessing.current_process().name)
torch.multiprocessing.set_start_method("spawn")
try:
    multiprocessing.set_start_method("fork")
except RuntimeError as error:
    print(error)
print(multiprocessing.get_start_method(), multiprocessing.active_children())
