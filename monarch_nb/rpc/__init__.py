"""The edges of processes: gRPC's channels, servers, the one table between statuses and errors; and frames over sockets.

channel           channels and servers with their options; set before grpc is imported
renewed_channel   one that shows our newest certificate
callers           who calls a node: told by the socket or the certificate, never by the request
status            errors of monarch_nb to statuses on nodes, and back to errors here
frame_connection  frames over Unix sockets, between processes of one machine
"""
