"""Files for ranks that do not see the notebook's: received, passed on, kept, removed.

tokens      finds out whether a node sees a client's files itself
relay       passes changes and content on to other nodes
node_files  takes in what comes, and reads files for clients
workspace   the copies that ranks work in
removal     takes away what is not needed any more
"""
