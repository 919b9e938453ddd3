# Text without an end of line, carriage returns and raw bytes come as they were written.
# ways: script live cell
import sys

sys.stdout.write("no end")
sys.stdout.flush()
sys.stdout.buffer.write(b" of line\nbytes \xff\n")
sys.stdout.flush()
sys.stderr.write("10%\r20%\r")
sys.stderr.write("done\nlast")
