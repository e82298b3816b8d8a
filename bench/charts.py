#!/usr/bin/python3
"""Charts of the documents, by matplotlib: panels side by side, lines, one legend.

    charts.draw(path, [{"title": "device use", "x_title": "programs", "y_max": 1.0, "log_x": True,
                        "series": {"with prorata": [(1, 0.9), (2, 0.8)]}}])

`y_max` and `log_x` (powers of two along x) may be left out. matplotlib is Debian's python3-matplotlib
(scripts/setup.sh plots), which only Debian's own Python finds: draw() runs this file with that one, so
it may be called from any.
"""
import json
import pathlib
import subprocess
import sys

DEBIAN_PYTHON = pathlib.Path("/usr/bin/python3")
COLOURS = ("#0b6e4f", "#c1440e", "#3b5ba5", "#8c6bb1", "#b8860b")
PANEL_INCHES = (4.2, 3.4)


def python():
    return str(DEBIAN_PYTHON) if DEBIAN_PYTHON.exists() else sys.executable


def installed():
    return subprocess.run([python(), "-c", "import matplotlib"], capture_output=True,
                          check=False).returncode == 0


def draw(path, panels):
    """Writes an SVG picture. One name has one colour in all panels."""
    if not installed():
        raise SystemExit(f"charts: cannot draw {path}: {python()} has no matplotlib; "
                         "run `scripts/setup.sh plots`")
    subprocess.run([python(), __file__, path], input=json.dumps(panels), text=True, check=True)


def main(path):
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("svg")
    # Text as text, and the same file from the same figures.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "prorata", "font.size": 9})
    from matplotlib import pyplot, ticker  # pylint: disable=import-outside-toplevel
    panels = json.load(sys.stdin)
    names = list(dict.fromkeys(name for panel in panels for name in panel["series"]))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    width, height = PANEL_INCHES
    figure, axes = pyplot.subplots(1, len(panels), figsize=(width * len(panels), height), squeeze=False)
    lines = {}
    for axis, panel in zip(axes[0], panels):
        for name, points in panel["series"].items():
            (lines[name],) = axis.plot(*zip(*points), color=colours[name], gid=f"line-{name}")
        axis.set_title(panel["title"], loc="left")
        axis.set_xlabel(panel["x_title"])
        axis.set_ylim(0, panel.get("y_max"))
        axis.grid(axis="y", color="#dddddd")
        if panel.get("log_x"):
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    figure.legend(lines.values(), lines.keys(), loc="lower left", ncol=len(lines), frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
