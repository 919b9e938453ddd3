# What torchrun sets for every process beside ranks and addresses is there.
# procs: 2
import os

for name in ("ROLE_NAME", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_RESTART_COUNT"):
    print(name, os.environ.get(name))
