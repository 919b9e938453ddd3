"""Programs on the ranks of a mesh, as torchrun would start them.

torchrun_flags  torchrun's flags: those that mean something, checked against what is held
script          a program: how it is to be run, where nodes have it, and its run
"""
