#!/usr/bin/env python3
"""Implements run.sh: phases of steps, each with a time limit; results are written at once."""

import argparse
import datetime
import os
import pathlib
import re
import shutil
import sys
import traceback

import table
from machine import PHASE_SECONDS, Places, Run, asked, run_limited
from phases import EVERY, PHASES, versions


def chosen_phases(asked):
    for phase in asked:
        if phase not in PHASES:
            sys.exit(f"run.py: there is no phase {phase}: " + ", ".join(PHASES))
    return asked or list(EVERY)


def machine(run):
    """Records the machine of the results."""
    facts = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **run.places.build()}
    if shutil.which("nvidia-smi"):
        facts["nvidia_smi"] = asked(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm", "--format=csv,noheader",
                                     "--id=0"])[0].strip()
    facts["LD_LIBRARY_PATH"] = run.libraries
    return facts


def has_gpu():
    """Whether this machine has an NVIDIA GPU, whatever is wrong with its driver or libraries."""
    return os.path.exists("/dev/nvidiactl") or re.search(r"^GPU 0", asked(["nvidia-smi", "-L"])[0], re.M) is not None


def without_tests(run, facts, reason):
    """test_cuda found no GPU. Returns the status of the script."""
    if not has_gpu():
        run.record(outcome="no GPU", detail=reason, machine=facts)
        run.note(reason)
        return 0
    run.record(machine=facts)
    run.begin("contact")
    run.record(step="test_cuda finds the GPU", outcome=f"failed: this machine has one, but {reason}")
    versions(run)
    run.note(write_table(run))
    return 2


def write_table(run):
    try:
        text = table.markdown(run.records)
    except Exception:
        text = "# GPU results\n\nThese tables could not be written; the records are in results.jsonl.\n\n" + traceback.format_exc()
        run.record(step="the tables", outcome="failed: they could not be written")
    (run.out / "table.md").write_text(text)
    return text


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description="Tests and measures trainerd on a GPU.")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(PHASES) + "; default: " + " ".join(EVERY))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(os.environ.get("OUT", "gpu-results")), help="folder of the results")
    parser.add_argument("--build", type=pathlib.Path, help="folder of the binaries, when it is not build/release")
    parser.add_argument("--seconds", type=float, default=PHASE_SECONDS, help=f"limit of each phase; default: {PHASE_SECONDS}")
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
    if "no test was run" in seen:
        return without_tests(run, facts, seen.strip())
    # The status of a list is its length. A program that the loader cannot start prints one line that names it.
    if outcome.startswith("timed out") or not seen.strip() or re.search(r"test_cuda: (error while loading|/\S+: version `)", seen):
        sys.exit(f"run.py: test_cuda cannot list its tests: {outcome}\n{seen}")
    run.record(machine=facts)
    for phase in phases:
        run.begin(phase, args.seconds)
        try:
            PHASES[phase](run)
        except Exception as error:  # the phases after it still run
            run.note(traceback.format_exc())
            run.record(step=f"{phase}: the phase itself", outcome=f"failed: {type(error).__name__}: {error}")
        # Written after each phase, since the caller's time limit may end a later one.
        text = write_table(run)
    print(text)
    run.close()
    return 1 if run.failed() or table.misnamed(run.records) else 0


if __name__ == "__main__":
    sys.exit(main())
