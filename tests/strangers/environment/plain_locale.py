# A container has no locale: Python makes C a UTF-8 one, and tells its children.
# env: LC_ALL=C
import locale
import os
import subprocess
import sys

print(sys.getfilesystemencoding(), locale.getpreferredencoding(False), sys.flags.utf8_mode)
print(locale.setlocale(locale.LC_CTYPE), os.environ.get("LC_CTYPE"), open("ü.txt", "w").encoding, [name for name in os.listdir(".") if name.endswith("txt")])
child = [sys.executable, "-c", "import sys; print(sys.flags.utf8_mode, ascii('ü'))"]
print(subprocess.run(child, capture_output=True, text=True).stdout)
