"""The nodes that answer: which of them are taken, what they hold, what their ranks say.

others       what is said of a pool that was forgotten, or that has no nodes
choosing     which nodes a reservation gets, and why it gets none
held         a reservation, put together from what its nodes say
asked        who is waited for when all are asked, and who has answered twice
silence      why a node does not answer
missing      why a reservation can not be found, or not be used
reach        whether nodes reach each other, and which one they do not
attempts     tries again with other nodes
pool         asks all nodes, chooses some, leases slots and spawns ranks
releasing    gives them back
last_heard   keeps what nodes said last, for a time when they do not answer
late_releases  has nodes that were away give back what nobody else tells them of
undertaking  has a node end what this process has half made when it is gone
line         waits for what others hold
conflicts    whether what is held already is what somebody asks for
infos        what nodes say of reservations, ranks and runs, put together
ranks        the ranks of a mesh: asked where they are, told, restarted
"""
