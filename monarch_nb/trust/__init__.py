"""Who may talk to the nodes of a pool of hosts: a private authority for each pool, and what it signs.

pools          the pool's directory in the user's config, its name, where its nodes are found
heard          what nodes said last: how they are called while they do not answer, and what is held there
published      where nodes tell of themselves, in a directory that all share
identity       a certificate with its key and authority, as one file; what a certificate says
identity_file  that file, read again when it was renewed
authority      makes certificates; renews itself
revocation     the list of certificates that count no longer
membership     pools made, people invited, invitations taken in; certificates renewed and revoked
passing        a certificate that a few processes share for a while, and nobody else
private_files  files that only this user reads, replaced whole

`cryptography` is imported inside functions: a local pool never needs it.
"""
