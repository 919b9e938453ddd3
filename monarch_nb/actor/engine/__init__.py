"""The engine of actors: mailboxes, threads of actors and open calls. `process` is its interface."""
