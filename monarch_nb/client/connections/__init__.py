"""gRPC to nodes, on one background loop.

bridge      from callers' threads to the loop, and back
connection  calls, and the session stream that comes back after every break
listeners   who hears of what comes there
asking      calls to many nodes at once
session     the runs of a mesh, through its first node
mail        messages to and from the processes of one node
decoding    what allocators send becomes events and failures
events      what a run tells its listeners
"""
