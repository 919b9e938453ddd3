# The same where it is done in a block, by update, and torch is imported by another name.
import os

if "MKL_NUM_THREADS" not in os.environ:
    os.environ.update({"MKL_NUM_THREADS": "1"}, OMP_NUM_THREADS="2")
from torch import nn, get_num_threads

print(get_num_threads(), nn.Linear(1, 1).bias.shape)
