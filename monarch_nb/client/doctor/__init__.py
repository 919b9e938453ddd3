"""What differs between this process and the nodes of a reservation.

doctor        asks this process and every node what they are
diagnosis     compares the answers, and says what to do about it
environments  which nodes share an environment; pip, once in each, and what it did
"""
