"""What a node knows and decides: no I/O, no clock, no processes.

state   who it is; leases, meshes and runs; each stimulus returns what is to be done
runs    the runs of one mesh: which ranks get which, in what order
lease   how long a reservation is held, what somebody may do with it, and why a GPU is not free
quotas  how much people and groups may hold of a pool, and how people write that down
"""
