"""A program that runs `lineage` without what makes root pass every permission; it exits with 77 where that cannot be."""

UNDER_NO_RIGHTS = """
import ctypes, os, sys
if os.geteuid() == 0:
    for right in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: what makes root pass every permission
        if ctypes.CDLL(None).prctl(24, right, 0, 0, 0):  # PR_CAPBSET_DROP: gone with the next program
            sys.exit(77)
os.execv(sys.executable, [sys.executable, "-m", "lineage", *sys.argv[1:]])
"""
