# What torch reads when it is imported, in Python and in C++, is what the environment says.
# env: TORCH_DISTRIBUTED_DEBUG=DETAIL
# env: TORCH_COMPILE_DISABLE=1
# env: TORCHINDUCTOR_MAX_AUTOTUNE=1
# ways: script live
import torch
import torch._dynamo
import torch._inductor.config
import torch.distributed as dist

print(dist.get_debug_level().name, torch._dynamo.config.disable, torch._inductor.config.max_autotune)
