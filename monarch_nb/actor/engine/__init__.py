"""The engine of actors. `process` is its interface.

process   the engine of a process: what arrives, what is sent
outside   what it and its surroundings (worker, client) say to each other
runner    an actor: its thread, one message after the other
mailbox   where its messages wait, and what they execute; ports, where values are sent, one by one
calls     calls that are not answered yet; deaths; a result that comes once
messages  what travels, and how it is packed
handles   what actors and meshes are known by
failing   how exceptions travel, failures that nobody handles, and processes that could not be set up
"""
