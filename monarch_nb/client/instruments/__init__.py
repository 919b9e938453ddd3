"""What looks inside while a run goes on, as the client asks for it.

asked  the instruments of a run, and what they found on its ranks
"""
