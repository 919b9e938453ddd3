"""The gateway of a node on which everybody runs as their own account: what `monarch-nb allocator --as-users` serves.

A room is an ordinary allocator that runs as one account. The gateway runs as an account that owns nothing. It alone
reads the network, leases slots, and counts limits. It passes on to rooms what concerns ranks and files.

starters  what starts rooms: the warden, which is root; in tests a plain one
pipe      a socket on which gRPC reaches a room, through connections that the starter opens
frames    messages between a gateway and a room without gRPC
outgoing  what rooms ask of other nodes: checked, and carried in their owners' names
way_out   a room's end of that, and of sessions
rooms     which rooms there are, and what is whose: opens, watches and ends them
access    who may do what, where meshes are in rooms
sessions  one client's session, carried on in the rooms that it is about
service   takes each request, answers it, or passes it on
making    puts it together, and makes the command lines of the warden and of rooms
"""
