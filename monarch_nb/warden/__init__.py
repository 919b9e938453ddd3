"""The part with power of `monarch-nb allocator --as-users`: root, small, and asked by a gateway that has no power.

users_file  users.toml: whose certificate means which account, who may, and who may have how much; pure
requests    what the gateway may ask, read strictly; pure
pam         whether PAM lets an account in, and its session
accounts    whether there is an account, and whether it may; looked up in a process of its own
devices     which GPUs a cgroup may open
groups      cgroups of rooms and reservations, and how everything in one is ended
starting    directories that no link leads out of, and processes that are somebody else from their first line on
rooms       the rooms, written down for the next warden
command     the command line: read here, made by `monarch-nb allocator --as-users`
__main__    python -m monarch_nb.warden: starts the gateway, answers it, and ends everything
client      the gateway's end
"""
