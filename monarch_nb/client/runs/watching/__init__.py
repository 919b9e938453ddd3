"""What is noticed about a run while it lasts, and said in the cell.

waits_watch    looks where the ranks are while it lasts
waits          the sentence that says who waits for whom
mismatches     of these: whose calls do not match
peers          of sends and receives: who waits for whom
lone_training  the line about ranks that train a model each
absences       what is said of those that do not, also by the engine that they came from
"""
