# Ctrl-C is for the processes that a program has started, too: it waits for them at its end (pytorch 36136, 14394).
# press: ready
# ways: script live cell
import multiprocessing as mp
import time


def train(ready):
    try:
        ready.set()
        time.sleep(1000)
    except KeyboardInterrupt:
        print("the child stops", flush=True)


if __name__ == "__main__":
    ready = mp.Event()
    process = mp.Process(target=train, args=(ready,))
    process.start()
    ready.wait()
    try:
        print("ready", flush=True)
        process.join()
    except KeyboardInterrupt:
        process.join()
        print("and the parent", flush=True)  # the exit code can be lost to the join that was interrupted
