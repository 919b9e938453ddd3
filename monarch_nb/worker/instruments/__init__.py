"""What looks inside while a run goes on: switched on for one run, and off at its end, whatever that is.

runs/instruments.py switches them on and off, and keeps what they found.

python_profile  the stacks of the main thread, 100 looks a second
stack_counts    how long stacks were there, in a tree of bounded size. Pure
torch_profile   torch.profiler over some steps of the run: `%%mesh --profile`
traces          its trace file: read event by event, cut, made ready to be one of many
shares          where the time of a trace goes. Pure
memory_history  torch's record of the GPU's allocations: `%%mesh --memory-history`
watch          --watch nan: stops at the first gradient, loss or parameter that is not finite
deterministic  --deterministic: a run computes as one before it, and where they part
steps          of these: what is called before and after each step of an optimizer
losses         the losses that backward passes begin with
batches        the batches that modules were last called with, and where in a module one stops being finite
finite         which tensors are not finite
"""
