"""The long-lived daemon of one node: leases slots, supervises ranks, routes runs, keeps logs. Never imports torch.

Rooms and files from the top down; each uses only what is below it:

__main__      starts a node and serves it until it is told to stop
api/          requests of clients, and the answers
node          puts the parts below together
runs/         carries runs to ranks, and sends clients what comes of them
reservations/ who has which slots, for how long, and what goes with a lease
mail/         messages between processes, here and on other nodes
files/        copies of the notebook's files for ranks that do not see them
memory/       what is written down, and how an allocator that starts again finds its ranks by it
readings/     how busy the node and its ranks are, and where
processes/    templates, ranks, scripts and stores: started, connected to, watched, ended
logs/         what ranks print: found, searched, and dropped when it is too much
state/        what the node knows and decides; pure
"""
