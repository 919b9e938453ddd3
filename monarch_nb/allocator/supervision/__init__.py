"""The processes of a node: templates, ranks, stores and what they start.

pythons        what a python and its template are known by
warming        keeps the node's own template warm
templates      starts, adopts and ends templates
supervisor     starts, adopts, watches and ends ranks and stores
process_watch  learns of the end of a process
links          the connections to them
mail_link      the connection on which a rank's mail travels
processes      who they are, how they ended, and how to end them with all that they started
"""
