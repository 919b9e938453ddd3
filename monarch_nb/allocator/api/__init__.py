"""Requests of clients, and the answers: the only room that speaks gRPC to them.

guard        stands in front of the service: nothing reaches it that is malformed or was not let in
access       says who may do what, and ends what is no longer let in
rules        what each request needs: one table for all methods
network      where an allocator of a network listens, and with which certificate
sessions     what one client says on its session, and is told
service      takes each request, calls the node or a file below, and packs the reply
control      asks and interrupts ranks on behalf of clients
describe     what the node, its reservations, ranks and runs are now, and what its python has installed
read_logs    every line that ranks wrote, in order, and what they go on to write
read_lines   any line, its number, and lines that match a text
"""
