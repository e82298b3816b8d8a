#!/usr/bin/env python3
"""Draws docs/reports/memory-waiting.svg from what `memory-waiting --json` says.

    build/bin/memory-waiting --json | bench/memory_waiting/plot.py docs/reports/memory-waiting.svg
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import charts  # pylint: disable=wrong-import-position

PANELS = (("makespan, s", "median_makespan_s"), ("mean suspended, s", "median_mean_suspended_s"),
          ("longest wait, s", "median_longest_wait_s"))


def panels(rows):
    policies = sorted({row["policy"] for row in rows})
    return [{"title": title, "x_title": "containers",
             "series": {policy: [(row["containers"], row[key]) for row in rows if row["policy"] == policy]
                        for policy in policies}}
            for title, key in PANELS]


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    charts.draw(sys.argv[1], panels(json.load(sys.stdin)["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
