"""A mesh and parts of it: code goes to its ranks, values come back. Much of what `Mesh` does is a function in the file
of its subject.

mesh            Mesh: run, push, pull, interrupt, for all ranks or some
core            what a mesh and its slices share: its ranks, asked and told, and the runs that are followed here
scaling         one cell on more and more of its ranks: how long that takes
scaling_report  and what that says. Pure
scripts         programs on its ranks, as torchrun would run them
looking         states, stacks, runs and live names of ranks, and why nodes do not answer
interrupt       what waits is dropped on every node, then what runs and what actors execute is interrupted
printed         what its ranks printed: lines, and numbers in them
"""
