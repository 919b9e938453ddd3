"""What nodes say, put together, and what follows from it. Nothing here asks a node.

choosing     which nodes a reservation gets, and why it gets none
held         a reservation, put together from what its nodes say
amounts      how much memory and how many CPUs a reservation may have on each of its nodes
conflicts    whether what is held already is what somebody asks for
infos        what nodes say of reservations, ranks and runs, put together
actor_infos  what nodes say of actors
missing      why a reservation can not be found, or not be used
"""
