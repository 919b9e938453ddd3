"""Stopping at `breakpoint()`: a pdb in a rank's thread, whose keyboard is somewhere else.

debugger  Python's hook: which threads have stopped, and whether anybody can answer
rank_pdb  the pdb of a thread, which shows and steps through the user's frames alone; its stdin and stdout: lines come
          over the control connection, answers when pdb asks again
"""
