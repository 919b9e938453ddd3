"""What each `%mesh SUBCOMMAND` does: it reads its line, asks the client, and shows what came of it.

subcommands  all of them, by name
files        sync, fetch, ls
scripts      run
plotting     plot
comparing    diff
watching     top
memory       memory
debugging    debug
looks        fold, show
saving       save, load, saves
releasing    release
"""
