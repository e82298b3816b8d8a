"""What a run of tests says last: what each failed test said, and their names.

A log may be cut, and its end is what is read. .ci/run says it all again after its last step, and
sums up: PRORATA_TEST_FAILED and PRORATA_TEST_TOTAL name the files that it does it from.
"""
import os

LINES_OF_ONE = 200
LINES_OF_ALL = 1000
FEWEST_LINES = 20


def _append(variable, text):
    if os.environ.get(variable):
        with open(os.environ[variable], "a", encoding="utf-8") as out:
            out.write(text)


def lines_of(step, failed):
    """For [(name, output)]: the end of each output, then all names."""
    each = max(FEWEST_LINES, min(LINES_OF_ONE, LINES_OF_ALL // max(1, len(failed))))
    lines = []
    for name, output in failed:
        said = output.splitlines()
        cut = f" (the last {each} of {len(said)} lines)" if len(said) > each else ""
        lines += [f"--- {step}: {name} said{cut}:", *said[-each:]]
    return lines + [f"FAILED {step}: {name}" for name, _ in failed]


def finish(step, passed, failed, skipped, unmet=0):
    """The end of a step: prints failed [(name, output)] and the counts, and keeps them for .ci/run.
    `unmet`: of those that passed, how many were expected to fail."""
    lines = lines_of(step, failed)
    for line in lines:
        print(line)
    if lines:
        _append("PRORATA_TEST_FAILED", "\n".join(lines) + "\n")
    _append("PRORATA_TEST_TOTAL", f"{passed} {len(failed)} {skipped}\n")
    expected = f" ({unmet} expected failures)" if unmet else ""
    print(f"{passed} passed{expected}, {len(failed)} failed, {skipped} skipped", flush=True)
