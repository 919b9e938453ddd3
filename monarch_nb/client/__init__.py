"""The thin client: reservations, meshes and runs. Importing it imports neither grpc nor torch."""
