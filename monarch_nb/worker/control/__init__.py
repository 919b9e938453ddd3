"""What a rank answers at any moment, also while its main thread runs a cell or hangs.

thread      the control thread: reads requests, answers them
interrupts  Ctrl-C reaches a run: SIGINT, cancellation, or groups/breaking for a collective that hangs
stacks      where the rank's threads are
completion  Tab: names that are alive
inspection  Shift+Tab: what is known of one
"""
