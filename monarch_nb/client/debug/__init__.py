"""Answering ranks that have stopped at `breakpoint()`, from any process of their owner's.

stops     where ranks have stopped: the table, and equal answers folded
commands  what is typed at `monarch_dbg> `: Monarch's commands, shorter forms, and lines for pdb
debugger  asks and tells the ranks of a mesh
console   the prompt: reads commands, prints answers
answering who waits for ranks that stop opens the prompt
terminal  the prompt in a terminal
"""
