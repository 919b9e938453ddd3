"""What a user holds: taken, found again, attached to, released.

lists        which reservations there are: listed, and found by name
memory       which of them a notebook held last
taking       what is asked for, checked; what is held under the name already, is free, or is waited for
jobs         what came as a job of an engine: obtained, asked for more, held for longer, ended
reserve      `reserve` and `attach`
reservation  a Reservation, with its nodes, its mesh and files
meshes       its main mesh, and those beside it, with their actors
members      its nodes now, also when others have changed them; a session to each
changing     other nodes: taken, told to all, undone when a part fails
growing      more nodes or fewer
replacing    others in place of those that are lost
sharing      who else may see it, or run cells on it
mmt          machines of Lightning AI, in the form of its MMT
"""
