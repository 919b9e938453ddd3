"""From the template to a rank: what must be so before a fork, and what a forked child changes.

preload     the template imports what ranks will need, and refuses what would make it unfit to fork
import_paths  what Python would have put on sys.path
huge_pages  the template's memory, so that a fork copies little
after_fork  a child becomes a rank: environment, seeds, device, session of its own
identity    what libraries are told that ask where they run
"""
