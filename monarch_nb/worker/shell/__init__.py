"""The IPython shell of a rank: code goes in, output and failures come out.

shell       the shell itself: made once in the template, displays and last values of each run
facts       a value's facts, for the row that many ranks share
patches     what works differently in a rank than in a script: input(), debuggers, spawning
streams     what is printed goes to files of the run, in order
descriptors of the standard streams, and who is told when user code moves them
failures    what was raised becomes the failure that the notebook shows
"""
