"""What a rank says of a value so that it can be compared with other ranks', without sending it.

leaves        a value in named parts: tensors of a module, numbers of a configuration
dimensions    which ranks a device mesh's dimension goes over
surroundings  what is compared beside values: random states, the environment
answers       the questions that the client asks, one after the other
"""
