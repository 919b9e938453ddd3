"""Answering ranks that have stopped at `breakpoint()`, from any process of their owner's.

commands  what is typed at `monarch_dbg> `, with Monarch's grammar of ranks
stops     where ranks have stopped: the table, and equal answers folded
debugger  asks and tells the ranks of a mesh
console   the prompt: reads commands, prints answers
answering who waits for ranks that stop opens the prompt
terminal  the prompt in a terminal
"""
