"""One execution on some ranks: sent, followed, waited for, interrupted.

packing           variables on their way to ranks
needs             what a run knows of its mesh
run               Run: submitted, told to listeners, joined, interrupted, collected
submission        how it comes to its nodes, and who gives it its number
interrupts        a run is interrupted: sent to its nodes, told about, and freed where it did not stop
printed           what it prints, in the cell that waits for it, or as lines
calls_run         one that is of calls of actors
nodes             its connections, and which of its nodes answer
stops             which of its ranks have stopped at breakpoints
watching          what is noticed about a run while it lasts, and said in the cell
results           how each rank ended
values            what the ranks returned
"""
