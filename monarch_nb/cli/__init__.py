"""`monarch-nb` in a terminal.

main  all commands: what they take, what they do
run   monarch-nb run: a script on ranks
"""
