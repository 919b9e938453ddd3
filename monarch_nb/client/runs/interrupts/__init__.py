"""A run is interrupted: sent to its nodes, told about, and freed where it did not stop.

freeing           interrupts of it, and what did not stop
interrupt_report  what an interrupt of it did
"""
