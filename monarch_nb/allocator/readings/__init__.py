"""How busy a node is, read while somebody looks.

facts        the memory of a process
gpus         its GPUs, by NVML, and which can not be used
load         processors, memory and GPUs, and what ranks take of them
whereabouts  where ranks are that have been running for a while
actors       the actors of ranks, and what they do
asking       what both ask of ranks
reach        how other nodes can be reached from here
"""
