"""Support for libraries that you use on ranks. A rank imports a library only when you do.

lightning   `Trainer()` and `Fabric()` train on all ranks of the mesh
accelerate  its state of a process group goes with the group
monarch     Monarch's own programs take a reservation as their job
"""
