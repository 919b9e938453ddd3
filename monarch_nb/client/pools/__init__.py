"""The nodes that answer: which of them are taken, what they hold, what their ranks say.

others       what is said of a pool that was forgotten, or that has no nodes
namesakes    hosts that are called alike
facts        what nodes say, put together, and what follows from it
answering    which nodes answer, which do not and why, and what those said last
leasing      how leases on several nodes are taken together, tried again with others, and given back
pool         asks all nodes, chooses some, leases slots and spawns ranks
line         waits for what others hold
ranks        the ranks of a mesh: asked where they are, told, restarted
"""
