"""Leases of slots: how they are given, how long they last, and what ends with them.

leases        gives, confirms and releases them
gpu_locks     says to all allocators of the machine which GPUs are leased
audit         logs who reserved what, who was let in, and which runs were whose
others        asks the other nodes of the pool who holds what there
fairness      counts what people hold of the pool, and refuses what is above their limits (by the rules in state)
line          who waits for slots
autosaves     what ranks save by themselves: written down, told to them, asked for before the end
expiry        ends those that nobody confirms, whose time is up, or that nobody uses (by the limits in state)
owed          tells nodes that were away what they are to end or to know
members       which nodes a reservation has, when these change
undertakings  ends on all nodes what a client has half made
meshes        closes and removes the meshes of a lease that is released
"""
