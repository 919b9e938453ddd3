"""Reservations: how their leases are given, how long they last, and what ends with them.

leases       gives, confirms and releases them, with their meshes
gpu_locks    says to all allocators of the machine which GPUs are leased
fairness     counts what people hold of the pool, and refuses what is above their limits (by the rules in state)
queue        who waits for slots
expiry       ends those that nobody confirms, whose time is up, or that nobody uses (by the limits in state)
members      which nodes a reservation has, and what these are to end or to know when they were away
"""
