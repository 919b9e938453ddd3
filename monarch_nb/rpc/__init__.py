"""gRPC's edges: channels, servers, and the one table between statuses and errors.

channel  channels and servers with their options; set before grpc is imported
status   errors of monarch_nb to statuses on nodes, and back to errors here
"""
