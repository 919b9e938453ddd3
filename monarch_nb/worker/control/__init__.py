"""What a rank answers at any moment, also while its main thread runs a cell or hangs.

thread      the control thread: reads requests, answers them
activities  what executes user code, on any thread; who hangs in a collective is freed by groups/breaking
interrupts  Ctrl-C reaches a run of the main thread: SIGINT, or cancellation
executions  what actors execute: its output, and how Ctrl-C reaches it on their threads
waits       waits of Python's own that end there when they are interrupted
stacks      where the rank's threads are
looks       what one look at a stack tells, and shares of many. Pure
looker      the thread that looks 20 times a second while somebody watches
switching   how soon it gets the interpreter
completion  Tab: names that are alive
inspection  Shift+Tab: what is known of one
"""
