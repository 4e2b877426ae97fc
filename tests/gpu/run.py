#!/usr/bin/env python3
"""Implements run.sh: phases of steps, each with a time limit; results are written at once."""

import argparse
import datetime
import os
import pathlib
import shutil
import subprocess
import sys

import table
from machine import Places, Run, run_limited
from phases import EVERY, PHASES


def chosen_phases(asked):
    for phase in asked:
        if phase not in PHASES:
            sys.exit(f"run.py: there is no phase {phase}: " + ", ".join(PHASES))
    return asked or list(EVERY)


def machine(run):
    """Records the machine of the results."""
    facts = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **run.places.build()}
    if shutil.which("nvidia-smi"):
        asked = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm", "--format=csv,noheader", "--id=0"],
                               capture_output=True, text=True)
        facts["nvidia_smi"] = asked.stdout.strip()
    facts["LD_LIBRARY_PATH"] = run.libraries
    return facts


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Tests and measures trainerd on a GPU.")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(PHASES) + "; default: " + " ".join(EVERY))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "gpu-results")), help="folder of the results")
    parser.add_argument("--build", type=pathlib.Path, help="folder of the binaries, when it is not build/release")
    parser.add_argument("--only", metavar="PATTERN", help="steps whose names match, of the phases asked for")
    args = parser.parse_args()
    phases = chosen_phases(args.phases)
    places = Places(args.build)
    if places.missing:
        sys.exit("run.py: not there: " + ", ".join(places.missing) + ": build them, or run this from the package")
    run = Run(args.out, places, args.only)
    facts = machine(run)
    run.note("\n".join(f"{name}: {value}" for name, value in facts.items()))
    seen, outcome = run_limited([places.binary("test_cuda"), "--list-test-names-only"], 120, dict(os.environ, LD_LIBRARY_PATH=run.libraries))
    if "no GPU: no test was run" in seen:
        run.record(outcome="no GPU", detail=seen.strip(), machine=facts)
        run.note(seen.strip())
        return 0
    # Catch's lists end with their number of entries.
    if outcome.startswith("timed out") or not seen.strip():
        sys.exit(f"run.py: test_cuda cannot list its tests: {outcome}\n{seen}")
    run.record(machine=facts)
    for phase in phases:
        run.begin(phase)
        PHASES[phase](run)
        # Written after each phase, since the caller's time limit may end a later one.
        text = table.markdown(run.records)
        (args.out / "table.md").write_text(text)
    print(text)
    run.close()
    return 1 if run.failed() or table.misnamed(run.records) else 0


if __name__ == "__main__":
    sys.exit(main())
