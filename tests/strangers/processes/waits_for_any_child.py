# A supervisor reaps whatever child ends, and hears of each by SIGCHLD.
import os
import signal
import subprocess
import sys

heard = []
signal.signal(signal.SIGCHLD, lambda number, frame: heard.append(number))
try:
    os.wait()
except ChildProcessError as error:
    print(error)
children = {subprocess.Popen([sys.executable, "-c", f"raise SystemExit({status})"]).pid: status for status in (3, 4)}
for _ in range(2):
    pid, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == children.pop(pid)
print(children, bool(heard))
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
