"""Runs on their way: from the client to the ranks, and their results back.

runs    queues a run, sends it to ranks when the state says so, and takes their results
values  keeps what is too large for a message until the client has it
"""
