"""Commands from the pages, for tests that run them unchanged."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parent.parent


def documented_line(page, beginning, places=None):
    """The one line of a page's `console` blocks that starts with `beginning`, for a shell. `places`: replacements of the reader's
    paths by the test's. docs_test.py fails for a command that no test requests."""
    blocks = re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    found = [line[2:] for block in blocks for line in block.splitlines() if line.startswith(f"$ {beginning}")]
    assert len(found) == 1, f"{page}: {beginning}: {found}"
    line = found[0]
    for place, own in (places or {}).items():
        assert place in line, f"{page}: no {place} in {line}"
        line = line.replace(place, str(own))
    return line


def documented(page, beginning, places=None):
    """The words of the command documented_line(...)."""
    return shlex.split(documented_line(page, beginning, places), comments=True)
