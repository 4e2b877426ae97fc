"""CI runs a slice of the tests that take long together.

tests/run.sh draws the slice from the commit and sets TRAINERD_TEST_SLICE. Without it, as in a test that is started by hand, and in full
runs every test runs.
"""

import itertools
import os
import sys
import unittest
import zlib

FULL = "TRAINERD_FULL_TESTS" in os.environ
SLICE = None if FULL else os.environ.get("TRAINERD_TEST_SLICE")
PART = itertools.count(zlib.crc32(os.path.basename(sys.argv[0]).encode()))  # of the next sliced test; each file starts elsewhere


def in_slice(part, parts):
    """True if this run does part `part` of something that CI does in `parts` parts."""
    return SLICE is None or part % parts == int(SLICE) % parts


def always(test):
    """Marks a test of a sliced class that every run does."""
    test.always = True
    return test


def sliced(parts):
    """Marks a class of tests of which a run of CI does every `parts`-th, and those marked @always."""
    def mark(case):
        tests = [name for name, test in vars(case).items() if name.startswith("test") and not hasattr(test, "always")
                 and not hasattr(test, "__unittest_skip__")]
        for name, part in zip(tests, PART):
            if not in_slice(part, parts):
                skip = unittest.skip(f"in another slice: TRAINERD_TEST_SLICE={part % parts}, or tests/run.sh full")
                setattr(case, name, skip(vars(case)[name]))
        return case
    return mark
