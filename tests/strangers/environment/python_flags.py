# Variables that Python reads at its start are its flags.
# env: PYTHONOPTIMIZE=1
# env: PYTHONUTF8=1
# env: PYTHONINTMAXSTRDIGITS=1000
# env: PYTHONWARNINGS=error::UserWarning
# ways: script live
import sys
import warnings

print(sys.flags.optimize, __debug__, sys.flags.utf8_mode, sys.get_int_max_str_digits())
assert False, "asserts are off"
try:
    warnings.warn("as an error")
except UserWarning as error:
    print("raised", error)
