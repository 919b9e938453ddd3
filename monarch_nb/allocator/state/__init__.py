"""What a node knows and decides: no I/O, no clock, no processes.

identity     who it is
state        leases, meshes and runs; each stimulus returns what is to be done
runs         the runs of one mesh: which ranks get which, in what order
rights       what somebody may do with a reservation
gpus         why a GPU is not free, in words
limits       how long a reservation is held, and may be unused
quotas       how much people and groups may hold of a pool; quotas_file reads what is written of that
"""
