"""`monarch-nb` in a terminal.

main    all commands: what they take, what they do
run     monarch-nb run: a script on ranks
plot    monarch-nb plot: curves of what ranks print
top     monarch-nb top: where ranks spend their time
debug   monarch-nb debug: the debugger's prompt
doctor  monarch-nb doctor: what differs between this environment and the nodes'
nodes   monarch-nb replace, grow, shrink, stop: the nodes and meshes of a reservation
release monarch-nb release: what is held is given back
declared  commands that are subcommands of %mesh, too: what they take is declared once
pools   monarch-nb pool: pools of hosts, and who may use them
manifest  monarch-nb manifest: the YAML of pods
hints   what to type in a terminal
tables  columns, JSON
"""
