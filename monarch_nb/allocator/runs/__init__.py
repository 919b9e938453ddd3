"""Runs on their way: from the client to the ranks, and what comes of them back.

sessions  batches events for one client, and reads output for it at a bounded rate
below     other nodes for which a session is as well: passes on what is theirs, and gathers what they say
runs      queues a run, sends it to ranks when the state says so, and takes their results
audience  who follows which run, and hears of its output, results and end
"""
