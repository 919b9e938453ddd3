"""A mesh and parts of it: code goes to its ranks, values come back.

mesh       Mesh: run, push, pull, restart, status, logs, for all ranks or some
holder     the reservation that users have from a mesh, and what they do with it
core       what a mesh and its slices share: the ranks, and the runs that are followed from here
scales     what runs on more and more of its ranks
scripts    programs on its ranks, as torchrun would run them
looking    states, stacks and live names of ranks
past       runs that others have submitted, and what ranks printed
interrupt  what waits is dropped on every node, then what runs is interrupted
interrupt_actors  the same for what actors execute
printed    the part of Mesh that has what was printed: lines, and numbers in them
pip        pip once in each environment of its nodes
"""
