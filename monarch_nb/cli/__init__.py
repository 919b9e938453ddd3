"""`monarch-nb` in a terminal.

main      all commands: what they take, what they do
run       monarch-nb run: a script on ranks
holding   reserve, release, replace, grow, shrink, stop: what is held; interrupt, restart, stacks: what runs there
looking   plot, top, debug, doctor
declared  commands that are subcommands of %mesh, too: what they take is declared once
pools     monarch-nb pool: pools of hosts, and who may use them
manifest  monarch-nb manifest: the YAML of pods
saying    what they print, in the words of a terminal: lines, tables, JSON
"""
