# What a program's first lines set before it imports torch counts.
import os

os.environ["OMP_NUM_THREADS"] = "3"
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

import torch
import torch._dynamo

print(torch.get_num_threads(), torch._dynamo.config.disable)
