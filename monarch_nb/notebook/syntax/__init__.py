"""The line of a magic, from declarations. Pure: no IPython, no connection.

declarations  what `%mesh`, its subcommands and `%%mesh` accept
command_line  words, flags, help and completion
"""
