# Python's development mode is on.
# env: PYTHONDEVMODE=1
import sys
import warnings

print(sys.flags.dev_mode, any(each[0] == "default" for each in warnings.filters))
