"""Clusters of SkyPilot: the launcher, and the process that asks SkyPilot for it.

launcher  what every engine can do, for SkyPilot
helper    a process that has SkyPilot, which the kernel has not
"""
