"""The commands of the pages, for tests that run them as they are written."""

import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parent.parent


def documented_line(page, beginning, places=None):
    """The one line of a page's `console` blocks that begins so, for a shell. `places`: what stands for a place of the page's reader, and
    the test's own. docs_test.py fails for a command that no test asks for."""
    blocks = re.findall(r"^```console\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
    found = [line[2:] for block in blocks for line in block.splitlines() if line.startswith(f"$ {beginning}")]
    assert len(found) == 1, f"{page}: {beginning}: {found}"
    line = found[0]
    for place, own in (places or {}).items():
        assert place in line, f"{page}: no {place} in {line}"
        line = line.replace(place, str(own))
    return line


def documented(page, beginning, places=None):
    """The words of that command."""
    return shlex.split(documented_line(page, beginning, places), comments=True)
