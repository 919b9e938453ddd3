"""What looks inside while a run goes on: switched on for one run, and off at its end, whatever that is.

runs/instruments.py switches them on and off, and keeps what they found.

python_profile  the stacks of the main thread, 100 looks a second
stack_counts    how long stacks were there, in a tree of bounded size. Pure
"""
