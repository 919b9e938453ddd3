"""What everything else stands on: standard library, and no file but pickling and pushing knows of anyone's package.

interrupting   Ctrl-C where it may come, and for another thread
callers        where somebody's code has called ours, in a traceback
readable       files that can be read, of however many
flag           an event for threads that Ctrl-C interrupts
tasks          what an event loop does that nobody waits for
file_locks     locks of files that say "in use"
directories    directories that end with this process
frames         messages on sockets, and pickles whose large buffers lie outside
pickling       pickling by value
pushing        what a notebook pushes is the ranks'
code_names     what cells, runs and pulls are called, and their source
rank_sets      sets of ranks as people read them
places         where a process stands in its world, as torchrun says it
pdb_lines      lines for pdb: its commands, and Python
ranges         sets of ranks as thousands of them are kept and sent
cpus           how many it may use
account        whose process this is
namespaces     where ids of processes count
read_at_start  variables that a process reads once
room           a disk that is full
escapes        ANSI codes in text
tracebacks     those that IPython has rendered, without frames of installed packages
printing       text for a stdout in which some characters do not exist, or that leaves a rank
"""
