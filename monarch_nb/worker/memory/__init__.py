"""Where the memory of a rank is: `%mesh memory`, and what is kept of it when there is no more.

figures   how much is in use: of the process, of its GPU. Pure, from what Linux and torch tell
gpus      all that asks torch about GPUs
held      the largest tensors, and the names that hold them
answers   what the client asks
failures  what was held when an allocation failed
"""
