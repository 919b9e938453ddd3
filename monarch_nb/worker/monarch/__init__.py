"""Monarch's own engine on a node: its worker loop, and the processes that it starts.

loop     the loop, in the one rank that a node has of the mesh `monarch`
process  what such a process runs: Monarch's own bootstrap, with output of ours
census   what such a process holds and executes: it tells whoever asks
held     the rank of the loop asks its processes, for `%mesh status` and the panel
output   where a process prints: the files of the newest run of the mesh, each line with its actor and rank

Nothing here imports Monarch before a client has asked for it.
"""
