"""How leases on several nodes are taken together, tried again with others, and given back.

attempts       tries again with other nodes
claims         has a node let one client at a time do something
undertaking    has a node end what this process has half made when it is gone
beside         has nodes end what was made beside a reservation, when it is not finished
releasing      gives them back
late_releases  has nodes that were away give back what nobody else tells them of
"""
