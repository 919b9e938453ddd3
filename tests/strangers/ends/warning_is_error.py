# Warnings that are made errors end the program.
import warnings

warnings.warn("only said")
warnings.simplefilter("error")
warnings.warn("deprecated option", DeprecationWarning)
