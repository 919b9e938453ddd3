"""What a user holds: taken, found again, attached to, released.

known        which reservations there are: listed, found by name, remembered
reserve      `reserve` and `attach`
reservation  a Reservation, with its nodes, its mesh and files
meshes       its main mesh, and those beside it
actors       the actors that live on its ranks
needs        what its meshes need of it
mmt          machines of Lightning AI, in the form of its MMT
placing      where its nodes have its files
nodes        a reservation whose nodes change: others, more, fewer, or for a longer time
reserving    how a reservation comes about: what is asked for is checked, then taken, waited for, or obtained as a job
unattached   released although nobody can attach to it
sharing      who else may see it, or run cells on it
attachment   while it is used from here: nothing is idle, and the first node says how much time is left
"""
