"""The long-lived daemon of one node: leases slots, supervises ranks, routes runs, keeps logs. Never imports torch.

Rooms and files from the top down; each uses only what is below it:

__main__      starts a node and serves it until it is told to stop
serving/      requests of clients, and the answers
node          puts the parts below together
ranks/        makes the processes of ranks and scripts, and replaces them
runs/         carries runs to ranks, and their results back
leases/       who has which slots, for how long, and what goes with a lease
mail/         messages between processes, here and on other nodes
files/        copies of the notebook's files for ranks that do not see them
sessions/     what clients are sent as it happens
recovery/     what is written down, and how an allocator that starts again finds its ranks by it
logs/         what ranks print: found, searched, and dropped when it is too much
readings/     how busy the node and its ranks are, and where
supervision/  the processes: started, connected to, watched, ended
state/        what the node knows and decides; pure
"""
