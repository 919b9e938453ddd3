"""Programs on the ranks of a mesh, as torchrun would start them.

torchrun_flags  torchrun's flags, checked against what is held
terminal_environment  what it has of the terminal's environment
script          a program and how it is to be run
finding         where it is on the nodes, and whether they see it
script_run      the run of it: its store, its attempts, how all end when a rank fails
"""
