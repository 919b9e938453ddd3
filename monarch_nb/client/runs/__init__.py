"""One execution on some ranks: sent, followed, waited for, interrupted.

packing           variables on their way to ranks
needs             what a run knows of its mesh
run               Run: submitted, told to listeners, joined, interrupted, collected
submission        how it comes to its nodes, and who gives it its number
freeing           interrupts of it, and what did not stop
printed           what it prints, in the cell that waits for it, or as lines
calls_run         one that is of calls of actors
nodes             its connections, and which of its nodes answer
absences          what is said of those that do not, also by the engine that they came from
waits_watch       looks where the ranks are while it lasts
waits             the sentence that says who waits for whom
lone_training     the line about ranks that train a model each
interrupt_report  what an interrupt of it did
results           how each rank ended
values            what the ranks returned
"""
