# A program chooses torch's threads before it computes, and the pool between operators only then.
import torch

torch.set_num_interop_threads(2)
torch.set_num_threads(3)
weight = torch.ones(64, 64, requires_grad=True)
(weight @ weight).sum().backward()
print(torch.get_num_threads(), torch.get_num_interop_threads(), weight.grad.sum().item())
try:
    torch.set_num_interop_threads(4)
except RuntimeError as error:
    print(str(error).splitlines()[0])
