"""What a rank answers at any moment, also while its main thread runs a cell or hangs.

thread      the control thread: reads requests, answers them
interrupts  what executes user code, and Ctrl-C for runs of the main thread; who hangs in a collective is freed
children    the processes that user code has started, which Ctrl-C is for, too
executions  what actors execute: its output, and how Ctrl-C reaches it on their threads, also where Python waits there
sampler     what the rank does, looked at while somebody watches
completion  Tab: names that are alive; Shift+Tab: what is known of one
"""
