"""A reservation whose nodes change: others, more, fewer, or for a longer time.

elastic    the nodes of a Reservation: replaced, more, fewer
replacing  puts free nodes in the places of some
growing    lets it have more nodes, or fewer
changing   lets it have other nodes, all or nothing
without    how it goes on without some nodes, as people type it
further    more nodes of an engine, for one that has some of it
extending  adds to the time limit
"""
