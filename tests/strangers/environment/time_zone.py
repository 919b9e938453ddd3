# The time zone of the environment is the one of Python, of libc and of children.
# env: TZ=Asia/Tokyo
# ways: script live
import datetime
import subprocess
import time

print(time.strftime("%Z %H:%M", time.localtime(0)), time.tzname, datetime.datetime.fromtimestamp(0))
print(subprocess.run(["date", "-d", "@0", "+%Z %H:%M"], capture_output=True, text=True).stdout)
