"""The line of a magic, from declarations. Pure: no IPython, no connection.

flags         flags that many commands have, and what looks inside ranks
holding       what the subcommands of `%mesh` accept that hold nodes, and what a line of `reserve` asks for
meant         words of other tools, and the nearest of ours
declarations  what `%mesh`, its other subcommands and `%%mesh` accept
command_line  words, flags, help and completion
"""
