# faulthandler writes where a program has it write: at a signal, later, and with the program's own file.
# ways: script live
import faulthandler
import os
import signal

with open("stacks.txt", "w") as file:
    faulthandler.register(signal.SIGUSR1, file=file)
    faulthandler.register(signal.SIGUSR2, file=file)
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    faulthandler.unregister(signal.SIGUSR1)
    faulthandler.unregister(signal.SIGUSR2)
    faulthandler.dump_traceback_later(1000, file=file)
    faulthandler.cancel_dump_traceback_later()
text = open("stacks.txt").read()
os.remove("stacks.txt")
print(text.count("Current thread"), "<module>" in text)
