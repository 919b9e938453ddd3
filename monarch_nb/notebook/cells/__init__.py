"""A `%%mesh` cell from its first line to its end.

cell           reads the line, submits the body, and gives the run a view and a place for its values
sent_files     before that, files that changed go to the nodes: the line above the cell that says so
healing        and allocators of a local pool that died are started again
scaling        with --scale the body goes to more and more ranks: what that takes is shown
instruments    what the line switches on meanwhile, and what is shown of it at the end
flames         the flame graph of --profile=python
profiles       what --profile and --memory-history found, and what memory held when it was full
went_wrong     of these: what finds out when a training went wrong
following      waits for the run; Ctrl-C goes to the ranks
calls          what a cell calls of actors: what these print is shown in it
resuming       nodes that the engine took back: others are asked for, the save is loaded, the cell runs again
answering      ranks that stop at breakpoints: the prompt below the output
progress       a line that says what goes on, and for how long
late_progress  the same for transfers, with a bar, and only when they take long
"""
