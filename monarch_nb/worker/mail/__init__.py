"""Mail of a rank: envelopes to and from other processes of the pool, through its allocator.

outside   what actors of a rank have around them
post      sends from any thread, reads on one of its own
blobs     large content, in files that are passed on by name
"""
