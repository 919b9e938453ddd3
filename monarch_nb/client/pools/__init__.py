"""The nodes that answer: which of them are taken, what they hold, what their ranks say.

others       what is said of a pool that was forgotten, or that has no nodes
choosing     which nodes are taken. Pure
held         what is held on them, put together; why it can not be had, or is not as it is wanted
infos        what there is to say of reservations, ranks and runs. Pure
actor_infos  the same of actors. Pure
answering    which nodes answer, which do not and why, what those said last, and what each is called
leasing      how leases on several nodes are taken together, tried again with others, and given back
pool         asks all nodes, chooses some, leases slots and spawns ranks
line         waits for what others hold
"""
