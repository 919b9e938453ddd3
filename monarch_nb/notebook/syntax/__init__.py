"""The line of a magic, from declarations. Pure: no IPython, no connection.

holding       what the subcommands of `%mesh` accept that hold nodes
declarations  what `%mesh`, its other subcommands and `%%mesh` accept
command_line  words, flags, help and completion
"""
