# A program that does not compile.
def train(:
    pass
