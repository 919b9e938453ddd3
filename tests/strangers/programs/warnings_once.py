# A warning is shown once for each place, on stderr.
# ways: script live
import warnings

for _ in range(3):
    warnings.warn("the learning rate is high")
warnings.warn("soon gone", DeprecationWarning)
