"""Answering ranks that have stopped at `breakpoint()`, from any process of their owner's.

debugger   where ranks have stopped; asks and tells them
console    the prompt: reads commands, prints answers
answering  who waits for ranks that stop opens the prompt, in a terminal too
"""
