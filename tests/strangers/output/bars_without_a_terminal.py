# Progress bars ask whether there is a terminal, and how wide it is.
# ways: script live
import shutil
import sys

from tqdm import tqdm

print(sys.stdout.isatty(), sys.stderr.isatty(), sys.stdin.isatty(), sys.stdout.line_buffering is not None)
print(sum(tqdm(range(5), disable=None)), shutil.get_terminal_size((77, 7)))
with tqdm(total=3, bar_format="{desc}{n}/{total}", desc="steps ") as bar:
    bar.update(3)
    tqdm.write("between")
