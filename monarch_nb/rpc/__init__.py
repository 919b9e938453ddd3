"""gRPC's edges: channels, servers, and the one table between statuses and errors."""
