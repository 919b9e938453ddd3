"""Nodes of a Ray cluster: the launcher, the process that asks Ray for it, and what runs on Ray's nodes.

launcher  what every engine can do, for Ray
helper    a process that has Ray, which the kernel has not
node      an actor of Ray's on each node, which holds an allocator
"""
