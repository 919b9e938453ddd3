"""What a rank does for libraries that are used in it. None of them is imported before the user imports it.

lightning   `Trainer()` and `Fabric()` train on all ranks of the mesh
accelerate  what it keeps of a process group goes with the group
"""
