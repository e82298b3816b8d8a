"""Reads a scenario file: what the programs of a test do, and what each is to get. The format is
described in sim/node/scenario.h, which reads the same files for the one-process simulation;
an unknown key is an error in both.
"""
import dataclasses
import pathlib
import re
import tomllib

QUANTUM_US = 10_000  # policy::TimeSharingOptions
BACKLOG_ALONE_US = 20_000


class ScenarioError(Exception):
    pass


@dataclasses.dataclass(kw_only=True)
class Terms:
    """Of a share; those that are None are not said."""
    compute: str | None = None
    compute_limit: str | None = None
    weight: int | None = None
    priority: int | None = None
    yield_within_ms: float | None = None

    def term_options(self):
        """Of `prorata run` and `prorata update`."""
        options = [] if self.weight is None else ["--weight", str(self.weight)]
        if self.compute is not None:
            options += ["--compute", self.compute]
        if self.compute_limit is not None:
            options += ["--compute-limit", self.compute_limit]
        if self.priority is not None:
            options += ["--priority", str(self.priority)]
        if self.yield_within_ms is not None:
            options += ["--yield-within", f"{self.yield_within_ms:g}ms"]
        return options


TERMS = tuple(field.name for field in dataclasses.fields(Terms))


@dataclasses.dataclass(kw_only=True)
class Program(Terms):
    name: str
    count: int = 1
    share: str = ""
    memory: str | None = None
    start_ms: float = 0
    stop_ms: float = 0
    kernel_us: object = 1000
    functions: int = 1
    sm_fraction: float = 1.0
    streams: int = 1
    per_sync: int = 16
    gap_us: float = 0
    every_us: float = 0
    poisson: bool = False
    graph: int = 0

    @property
    def names(self):
        """Of its processes."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]

    @property
    def mean_kernel_us(self):
        if isinstance(self.kernel_us, dict):
            return sum(self.kernel_us["choice"]) / len(self.kernel_us["choice"])
        if isinstance(self.kernel_us, list):
            return sum(self.kernel_us) / 2
        return self.kernel_us

    @property
    def launch_us(self):
        """Device time of one launch."""
        return self.mean_kernel_us * max(1, self.graph)

    def load_options(self, seed):
        """gpuload's command line, but for what the machine decides."""
        if isinstance(self.kernel_us, dict):
            kernel = ",".join(str(round(us)) for us in self.kernel_us["choice"])
        elif isinstance(self.kernel_us, list):
            kernel = "-".join(str(round(us)) for us in self.kernel_us)
        else:
            kernel = str(round(self.kernel_us))
        return ["--kernel-us", kernel, "--functions", self.functions,
                "--sm-fraction", self.sm_fraction, "--streams", self.streams,
                "--per-sync", self.per_sync, "--gap-us", round(self.gap_us), "--graph", self.graph,
                *(["--every-us", round(self.every_us)] if self.every_us else []),
                *(["--poisson"] if self.poisson else []),
                "--seed", seed, "--delay", self.start_ms / 1000,
                "--seconds", (self.stop_ms - self.start_ms) / 1000]

    def share_options(self):
        weight = [] if self.weight else ["--weight", "1"]  # the file's default, not the command's
        return ["--name", self.share, "--memory", self.memory or "1GiB", *weight,
                *self.term_options()]


@dataclasses.dataclass
class Expect:
    program: str | None = None
    share: str | None = None
    device_use: bool = False
    gpu_time: float = -1
    tolerance_points: float = 1.0

    @property
    def of(self):
        return self.program or self.share or "device_use"


@dataclasses.dataclass(kw_only=True)
class Update(Terms):
    """`prorata update` while programs run: other terms for a share."""
    at_ms: float = -1
    share: str = ""


@dataclasses.dataclass
class Scenario:
    name: str = ""
    duration_ms: float = 0
    warmup_ms: float = 0
    prorata: bool = True
    elastic_ceiling: str | None = None
    machine: dict = dataclasses.field(default_factory=dict)
    programs: list = dataclasses.field(default_factory=list)
    expect: list = dataclasses.field(default_factory=list)
    updates: list = dataclasses.field(default_factory=list)  # in the order of their times

    @property
    def window_us(self):
        return (self.duration_ms - self.warmup_ms) * 1000

    def shares(self):
        """{share: its programs}, in the order of the file."""
        found = {}
        for program in self.programs:
            found.setdefault(program.share, []).append(program)
        return found

    def span(self):
        """(span_us, wakes): where late wake-ups cost most; see tests/noise/noise.h."""
        spans = []
        for program in self.programs:
            if program.per_sync > 0:
                # The executor runs the last kernel's function, then wakes the program; a gap ends by
                # a third wake-up.
                busy_us = program.per_sync * program.launch_us
                spans.append((max(busy_us + program.gap_us, program.every_us),
                              3 if program.gap_us or program.every_us else 2))
        if self.prorata and len(self.shares()) > 1:
            # A turn's end: the helper sees the last fence, the agent hears of it, the next program
            # wakes and launches.
            spans.append((QUANTUM_US, 3))
        return min(spans, key=lambda span: span[0] / span[1], default=(BACKLOG_ALONE_US, 1))

    def launches_per_us(self):
        """Of all programs together, were each alone: what their calls take of the CPUs."""
        def often(program):
            alone = 1 / program.launch_us
            return min(alone, program.per_sync / program.every_us) if program.every_us else alone
        return sum(program.count * often(program) for program in self.programs)


def _read(kind, table, where):
    known = {field.name for field in dataclasses.fields(kind)}
    for key in table:
        if key not in known:
            raise ScenarioError(f"{where}{key}: unknown setting; known here: "
                                + ", ".join(sorted(known)))
    return kind(**table)


def _check(scenario, origin):
    def need(true, text):
        if not true:
            raise ScenarioError(f"{origin}: {text}")
    need(scenario.name, "name: expected a line for people")
    need(0 <= scenario.warmup_ms < scenario.duration_ms, "warmup_ms: expected less than duration_ms")
    need(scenario.programs, "programs: expected at least one")
    names = [program.name for program in scenario.programs]
    need(len(set(names)) == len(names), "programs: two have one name")
    for program in scenario.programs:
        need(0 <= program.start_ms <= program.stop_ms <= scenario.duration_ms,
             f"{program.name}: expected start_ms <= stop_ms <= duration_ms")
        need(program.per_sync > 0 or not program.gap_us,
             f"{program.name}: a gap comes after a synchronisation; per_sync is 0")
        need(not program.every_us or (program.per_sync > 0 and not program.gap_us),
             f"{program.name}: every_us goes with per_sync above 0, and with no gap_us")
    for share, programs in scenario.shares().items():
        for term in (*TERMS, "memory"):
            given = {getattr(p, term) for p in programs} - {None}
            need(len(given) <= 1, f"share {share}: its programs give it different terms of {term}")
            for program in programs:
                setattr(program, term, next(iter(given), None))
    for update in scenario.updates:
        need(0 <= update.at_ms <= scenario.duration_ms and update.share in scenario.shares(),
             "updates: expected at_ms up to duration_ms, and the name of a share")
        need(update.term_options(), f"updates: nothing to change of {update.share}")
    for expect in scenario.expect:
        need(sum((expect.program is not None, expect.share is not None, expect.device_use)) == 1,
             "expect: expected one of program, share and device_use = true")
        need(0 <= expect.gpu_time <= 1, f"expect {expect.of}: gpu_time: expected 0 to 1")
        need(expect.device_use or expect.program in names or expect.share in scenario.shares(),
             f"expect: there is no {expect.of}")


def parse(text, origin):
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{origin}: {error}") from None
    programs = [_read(Program, entry, f"{origin}: programs[{i}].")
                for i, entry in enumerate(table.pop("programs", []))]
    expect = [_read(Expect, entry, f"{origin}: expect[{i}].")
              for i, entry in enumerate(table.pop("expect", []))]
    updates = [_read(Update, entry, f"{origin}: updates[{i}].")
               for i, entry in enumerate(table.pop("updates", []))]
    scenario = _read(Scenario, table, f"{origin}: ")
    scenario.programs, scenario.expect = programs, expect
    scenario.updates = sorted(updates, key=lambda update: update.at_ms)
    for program in programs:
        program.share = program.share or program.name
        program.stop_ms = program.stop_ms or scenario.duration_ms
    _check(scenario, origin)
    return scenario


def shortened(text, duration_ms):
    """The text of a scenario that lasts at most so long: the same file for every layer."""
    def cut(match):
        return f"duration_ms = {min(float(match.group(1)), duration_ms):g}"
    return re.sub(r"^duration_ms\s*=\s*([0-9.]+)", cut, text, count=1, flags=re.M)


def read(path):
    return parse(pathlib.Path(path).read_text(encoding="utf-8"), str(path))


def machine_toml(machine, dilation):
    """The machine's file for the simulated driver."""
    def value(item):
        if isinstance(item, bool):
            return "true" if item else "false"
        if isinstance(item, (int, float)):
            return repr(item)
        if isinstance(item, str):
            return '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if isinstance(item, list):
            return "[" + ", ".join(map(value, item)) + "]"
        return "{ " + ", ".join(f"{key} = {value(part)}" for key, part in item.items()) + " }"
    settings = {**machine, "dilation": dilation}
    return "".join(f"{key} = {value(item)}\n" for key, item in settings.items())
