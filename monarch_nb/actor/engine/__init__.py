"""The engine of actors. `process` is its interface.

process    the engine of a process: what arrives, what is sent
outside    what it and its surroundings (worker, client) say to each other
runner     an actor: its thread, one message after the other
setting_up whether actors may be made already
delivery   what comes out of envelopes
mailbox    where its messages wait
calls      calls that are not answered yet; deaths
outcomes   a result that comes once
ports      where values are sent, one by one
messages   what travels, and how it is packed
handles    what actors and meshes are known by
methods    what a message executes
failing    how exceptions travel
faults     failures that nobody handles
"""
