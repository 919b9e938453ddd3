"""How busy a node is, read while somebody looks.

gpus   its GPUs, by NVML, and which can not be used
load   processors, memory and GPUs, and what ranks take of them
ranks  where ranks are that have been running for a while, and what their actors do
reach  how other nodes can be reached from here
"""
