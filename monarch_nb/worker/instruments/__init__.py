"""What looks inside while a run goes on: switched on for one run, and off at its end, whatever that is.

runs/instruments.py switches them on and off, and keeps what they found.

python_profile  the stacks of the main thread, 100 looks a second, in a tree of bounded size
torch_profile   torch.profiler over some steps of the run, `%%mesh --profile`; its record of a GPU's allocations
traces          its trace file: read event by event, cut, made ready to be one of many; where its time goes
watch           --watch nan: stops at the first gradient, loss or parameter that is not finite
batches         the batches that modules were last called with, and where in a module one stops being finite
"""
