"""What is asked of people before something is done.

forms     the fields, and the messages for each
ways      engines that can be asked for nodes, as a part of the form
resizing  what would become of a reservation with more nodes, or fewer
"""
