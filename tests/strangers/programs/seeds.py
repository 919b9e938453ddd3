# Seeded numbers are those of any process, and unseeded ones differ between ranks.
# procs: 2
import os
import random

import numpy
import torch

unseeded = [random.random(), float(numpy.random.rand()), torch.rand(1).item() if os.environ["RANK"] == "9" else 0]
random.seed(1), numpy.random.seed(2), torch.manual_seed(3)
print(random.random(), numpy.random.rand(), torch.rand(2).tolist(), len(set(unseeded)))
