"""How a reservation comes about: what is asked for is checked, then taken, waited for, or obtained as a job.

arguments  what `reserve` is given, checked
taking     what is held under the name already, or is free
waiting    reserves what others hold, when it is free
jobs       nodes that come as a job of an engine, for a reservation
"""
