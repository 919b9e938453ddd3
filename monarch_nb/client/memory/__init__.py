"""`%mesh memory`: how much memory ranks use, and which tensors hold it.

report  what is said of it, ranks alike as one. Pure
memory  `Mesh.memory`
"""
