"""What each `%mesh SUBCOMMAND` does: it reads its line, asks the client, and shows what came of it.

subcommands  all of them, by name
files        sync, fetch, ls
scripts      run
looking      fold, show, top, diff, memory, debug
printed      logs, plot
saving       save, load, saves, release
"""
