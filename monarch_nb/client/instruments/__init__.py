"""What looks inside ranks, as the client asks for it.

asked      the instruments of a run, and what they found on its ranks
profiles   the profiles and memory histories of ranks come here: `Mesh.profile_of`
flames     flame graphs of what main threads did: `Mesh.flames_of`
top_table  where ranks are, and who is waited for. Pure
top        `Mesh.top`
memory     how much memory ranks use, and which tensors hold it: `Mesh.memory`
"""
