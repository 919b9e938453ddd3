"""Machines that are reached by ssh: what is needed there is brought there, and allocators are started and ended.

preparing    a process that prepares the hosts of a job, all or none; what could not be ended, and is when it can
environment  Python on a host: this process's own where that works there, else one that is made
fingerprint  what an installation is: equal ones are interchangeable
host.sh      what runs on a host, where nothing of ours may be yet
tunnels      connections to allocators that only their own hosts reach
command      OpenSSH's client, that never asks anybody for anything, and which hosts are meant
"""
