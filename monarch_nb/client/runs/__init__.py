"""One execution on some ranks: sent, followed, waited for, interrupted.

packing       variables on their way to ranks
run           Run: submitted, told to listeners, joined, interrupted, collected
submission    how it comes to its nodes, and who gives it its number
interrupting  a run is interrupted: sent to its nodes, told about, and freed where it did not stop
printed       what it prints, in the cell that waits for it, or as lines
calls_run     one that is of calls of actors
nodes         its session, and which of its nodes answer
results       how each rank ended, what it returned, and which have stopped at breakpoints
waits         looks where the ranks are while it lasts, and says who waits for whom
mismatches    of these: whose calls do not match, who waits for which peer, and who waits in vain. Pure
notices       what is said of nodes that do not answer, and of ranks that train a model each
"""
