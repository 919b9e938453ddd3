"""What a run brings to a rank, and what it leaves.

values       what was pushed is unpacked, what is pulled is packed; the rank's actors, as cells see them
cells        a cell, a push or a pull is executed in the shell, in the world that user code is told to work with
instruments  what looks inside meanwhile is switched on, and off
script       a program is executed as `python train.py` would
results      what came of each run, kept until the allocator has it
"""
