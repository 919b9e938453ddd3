# A writer closes its file when the program ends well, by its destructor and by a finalizer.
import tempfile
import weakref


class Writer:
    def __init__(self):
        self.file = open("written.txt", "w")
        self.file.write("begun\n")

    def __del__(self):
        self.file.write("closed\n")
        self.file.close()
        print("closed")


writer = Writer()
writer.self = writer
kept = tempfile.TemporaryDirectory(dir=".")
weakref.finalize(kept, print, "finalized")
unclosed = open("unclosed.txt", "w")
unclosed.write("all of it")
