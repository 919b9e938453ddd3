"""What looks inside while a run goes on: switched on for one run, and off at its end, whatever that is.

runs/instruments.py switches them on and off, and keeps what they found.
"""
