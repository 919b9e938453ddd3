# A program profiles and traces itself; what it counts is its own.
# ways: script live cell
import cProfile
import io
import pstats
import sys
import tracemalloc


def work(depth):
    return 1 + work(depth - 1) if depth else 0


profile = cProfile.Profile()
profile.enable()
work(20)
profile.disable()
calls = {key[2]: value[:2] for key, value in pstats.Stats(profile, stream=io.StringIO()).stats.items()}
print(calls["work"])
seen = []
sys.settrace(lambda frame, event, argument: seen.append(frame.f_code.co_name))
work(2)
sys.settrace(None)
print([name for name in seen if name == "work"])
tracemalloc.start()
kept = bytearray(1 << 20)
print(tracemalloc.get_traced_memory()[0] >= 1 << 20)
tracemalloc.stop()
