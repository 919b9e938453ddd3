# The first Ctrl-C has the loop end after its step, the second one stops it (pytorch/rl 4381).
# press: step 0
# press: asked
# ways: script live cell
import signal
import time


def ask(number, frame):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("asked", flush=True)


signal.signal(signal.SIGINT, ask)
try:
    print("step 0", flush=True)
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    print("stopped")
finally:
    signal.signal(signal.SIGINT, signal.default_int_handler)
