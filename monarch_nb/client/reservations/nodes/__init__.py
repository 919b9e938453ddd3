"""A reservation whose nodes change: others, more, fewer, or for a longer time.

members    the nodes of a Reservation: what it has, and follows when others change
replacing  puts free nodes in the places of some
growing    lets it have more nodes, or fewer
changing   lets it have other nodes, all or nothing
without    how it goes on without some nodes, as people type it
further    more nodes of an engine, for one that has some of it
extending  adds to the time limit
"""
