"""The thin client: reservations, meshes and runs. Importing it imports neither grpc nor torch. Top to bottom:

reservations/  what a user holds: taken, found again, attached to, released
monarch/       Monarch's own engine on the nodes, and this process as its client
meshes/        a mesh and parts of it: code goes to its ranks, values come back; pip on its nodes
memory/        how much memory ranks use, and which tensors hold it
comparing/     which ranks have other values than the rest
instruments/   what looks inside while a run goes on
flames/        flame graphs of what ranks did in a run
top/           where ranks are, and who is waited for
scaling/       one cell on more and more ranks, measured
saving/        what ranks hold goes to disk and comes back
debug/         ranks that have stopped at breakpoints are answered
doctor/        what differs between this process and the nodes
actors/        actors, as a notebook or a script calls them
scripts/       programs on a mesh, as torchrun would start them
runs/          one execution on some ranks: followed, waited for, interrupted
curves/        the numbers that ranks print, drawn
logs/          what ranks wrote, read from their nodes
pools/         the nodes that answer: which of them are taken, what they hold, what their ranks say
files/         the project's files: what changed here goes to nodes, what ranks wrote comes back
connections/   gRPC to one node each, on one background loop
advice         what messages advise, as it is typed where they are read
presenting     the notebook that this process serves, if any: its name, and its panels
"""
