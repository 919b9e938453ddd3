"""What clients are sent as it happens.

audience  who follows which run, and hears of its output, results and end
sessions  batches events for one client, and reads output for it at a bounded rate
below     other nodes for which a session is as well: passes on what is theirs, and gathers what they say
"""
