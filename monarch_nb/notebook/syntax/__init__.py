"""The line of a magic, from declarations. Pure: no IPython, no connection.

common        flags that many commands have
holding       what the subcommands of `%mesh` accept that hold nodes
inside        what looks inside ranks: instruments of a cell
went_wrong    flags of a cell that find out when a training went wrong
declarations  what `%mesh`, its other subcommands and `%%mesh` accept
command_line  words, flags, help and completion
"""
