"""What a run brings to a rank, and what it leaves.

values         what was pushed is unpacked, what is pulled is packed
worlds         which ranks user code is told to work with
cells          a cell, a push or a pull is executed in the shell
instruments    what looks inside meanwhile is switched on, and off
actors         the rank's actors, as cells see them
script         a program is executed as `python train.py` would
import_times   how long a program waited for imports that could be preloaded
lone_training  a model that trains without any process group is noticed
results        what came of each run, kept until the allocator has it
"""
