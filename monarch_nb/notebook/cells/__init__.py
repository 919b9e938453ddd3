"""A `%%mesh` cell from its first line to its end.

cell           reads the line, submits the body, and gives the run a view and a place for its values
sent_files     before that, allocators of a local pool that died start again, and files that changed go to the nodes
scaling        with --scale the body goes to more and more ranks: what that takes is shown
instruments    what the line switches on meanwhile, and what is shown of it at the end
following      waits for the run; Ctrl-C goes to the ranks; who stops at breakpoints gets a prompt below the output
calls          what a cell calls of actors: what these print is shown in it
resuming       nodes that the engine took back: others are asked for, the save is loaded, the cell runs again
unknown_names  a name that the cell does not know, and the kernel or the ranks do: what to type
progress       a line that says what goes on, and for how long; for transfers with a bar, when they take long
"""
