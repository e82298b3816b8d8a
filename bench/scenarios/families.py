"""The scenarios of the benchmarks, as texts in the format of sim/node/scenario.h: families of them
that differ in a number are made here, so that none is forgotten.
"""
import dataclasses

MS = 1000  # of a microsecond


@dataclasses.dataclass
class Benchmark:
    name: str            # of its files
    family: str
    text: str
    number: int = 0      # what the family varies
    processes: bool = False  # few and coarse enough for many real processes on a small machine


def _value(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(part)}" for key, part in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)


def text_of(name, duration_ms, warmup_ms, programs, expect=(), machine=None):
    lines = [f'name = "{name}"', f"duration_ms = {duration_ms}", f"warmup_ms = {warmup_ms}", "prorata = true"]
    if machine:
        lines.append(f"machine = {machine}")
    for table, entries in (("programs", programs), ("expect", expect)):
        for entry in entries:
            lines += ["", f"[[{table}]]", *(f"{key} = {_value(part)}" for key, part in entry.items())]
    return "\n".join(lines) + "\n"


def _gpu_time(program, part, points=1.0):
    return {"program": program, "gpu_time": part, "tolerance_points": points}


SHARES = {
    "5-3-2": [("a", {"compute": "0.5"}, 0.5), ("b", {"compute": "0.3"}, 0.3), ("c", {"compute": "0.2"}, 0.2)],
    "9-1": [("a", {"compute": "0.9"}, 0.9), ("b", {"compute": "0.1"}, 0.1)],
    "8-equal": [(f"p{i}", {"compute": "0.125"}, 0.125) for i in range(8)],
    "limited": [("limited", {"compute": "0.4", "compute_limit": "0.4"}, 0.4), ("b", {}, 0.3), ("c", {}, 0.3)],
}
KERNELS = {
    "20us": [{"kernel_us": 20, "per_sync": 400}],
    "200us": [{"kernel_us": 200, "per_sync": 64}],
    "5ms": [{"kernel_us": 5000, "per_sync": 4}],
    "graphs": [{"kernel_us": 100, "graph": 10, "per_sync": 8}],
    "mixed": [{"kernel_us": 200, "per_sync": 64}, {"kernel_us": 5000, "per_sync": 4},
              {"kernel_us": 100, "graph": 10, "per_sync": 8}],
}


def entitlements():
    """The matrix of issue 5: what each is entitled to, by kernels."""
    for shares, programs in SHARES.items():
        for kernels, kinds in KERNELS.items():
            made = [{"name": name, **terms, **kinds[i % len(kinds)]}
                    for i, (name, terms, _) in enumerate(programs)]
            expect = [_gpu_time(name, part) for name, _, part in programs]
            expect.append({"device_use": True, "gpu_time": 0.99, "tolerance_points": 1.0})
            yield Benchmark(f"entitled-{shares}-{kernels}", "entitled",
                            text_of(f"entitled {shares}, kernels {kernels}", 5500, 500, made, expect),
                            processes=shares == "5-3-2" and kernels == "5ms")


def limit_alone():
    yield Benchmark("limit-alone", "limit", text_of(
        "a limit of 0.3, alone", 5500, 500,
        [{"name": "a", "compute": "0.3", "compute_limit": "0.3", "kernel_us": 1000}],
        [{"device_use": True, "gpu_time": 0.3, "tolerance_points": 1.0}]), processes=True)


def partition():
    """GaiaGPU: equal parts of one GPU."""
    for count in (1, 2, 3, 4, 5, 8):
        part = round(1 / count - 5e-7, 6)
        programs = [{"name": f"p{i}", "compute": str(part), "kernel_us": [200, 2000], "per_sync": 32}
                    for i in range(count)]
        yield Benchmark(f"partition-{count}", "partition", text_of(
            f"partition: {count} equal shares", 5500, 500, programs,
            [_gpu_time(f"p{i}", 1 / count) for i in range(count)]), count, processes=count == 2)


def isolation():
    """GaiaGPU: programs of different kinds on equal shares; none is to feel what the others are."""
    kinds = [{"kernel_us": 200, "per_sync": 64}, {"kernel_us": 4000, "per_sync": 0}]
    for count in (2, 4, 8):
        programs = [{"name": f"p{i}", "compute": str(1 / count), **kinds[i % 2]} for i in range(count)]
        yield Benchmark(f"isolation-{count}", "isolation", text_of(
            f"isolation: {count} programs of two kinds", 5500, 500, programs,
            [_gpu_time(f"p{i}", 1 / count) for i in range(count)]), count)


def elastic():
    """GaiaGPU: a share of 0.3 alone grows to all of the device; a second comes and gets its request; it
    leaves, and the first grows again."""
    yield Benchmark("elastic", "elastic", text_of(
        "elastic: a share of 0.3, and one of 0.7 that comes and goes", 6000, 0,
        [{"name": "first", "compute": "0.3", "kernel_us": 1000},
         {"name": "second", "compute": "0.7", "kernel_us": 1000, "start_ms": 2000, "stop_ms": 4000}]),
        processes=True)


def training_and_inference():
    """Gemini: programs that are always busy, and programs that wait for requests."""
    training = [{"name": f"training-{i}", "compute": "0.3", "kernel_us": [200, 3000], "per_sync": 64,
                 "gap_us": 3000}
                for i in range(2)]
    inference = [{"name": f"inference-{i}", "compute": "0.2", "kernel_us": 500, "per_sync": 8,
                  "every_us": 40 * MS, "poisson": True} for i in range(2)]
    yield Benchmark("mix", "mix", text_of("two that train and two that answer requests", 15000, 5000,
                                          training + inference))


def priority():
    """A program of 1 ms every 20 ms, alone, beside two best-effort ones, and so with a priority."""
    critical = {"name": "critical", "compute": "0.2", "kernel_us": 1000, "per_sync": 1, "every_us": 20 * MS}
    others = [{"name": f"best-effort-{i}", "kernel_us": 2000, "per_sync": 16} for i in range(2)]
    yield Benchmark("critical-alone", "priority", text_of(
        "latency-critical, alone", 10500, 500, [critical]), processes=True)
    yield Benchmark("critical-beside", "priority", text_of(
        "latency-critical beside two best-effort programs", 10500, 500, [critical, *others]), processes=True)
    yield Benchmark("critical-priority", "priority", text_of(
        "latency-critical with a priority beside two best-effort programs", 10500, 500,
        [{**critical, "priority": 10}, *others]))


def gaps():
    """Pairs that leave gaps."""
    for name, kernel_us, per_sync, gap_us in (("50us", 50, 1, 50), ("6ms", 500, 12, 4000),
                                              ("60-percent", 1000, 3, 2000)):
        programs = [{"name": n, "kernel_us": kernel_us, "per_sync": per_sync, "gap_us": gap_us} for n in "ab"]
        yield Benchmark(f"gaps-{name}", "gaps", text_of(f"a pair with gaps: {name}", 5500, 500, programs),
                        processes=name == "6ms")


def long_kernel():
    """One kernel of 3 s among short ones; the judged window is 30 s."""
    yield Benchmark("long-kernel", "long", text_of(
        "one kernel of 3 s among short ones", 33500, 3500,
        [{"name": "short-0", "kernel_us": 1000}, {"name": "short-1", "kernel_us": 1000},
         {"name": "once", "kernel_us": 3000000, "per_sync": 1, "stop_ms": 100}],
        [_gpu_time("short-0", 0.5), _gpu_time("short-1", 0.5)]))


def many():
    for count in (1, 2, 4, 8, 16, 32, 64):
        programs = [{"name": f"p{i}", "kernel_us": 500, "per_sync": 32, "memory": "256MiB"}
                    for i in range(count)]
        yield Benchmark(f"programs-{count}", "programs", text_of(
            f"{count} busy programs", 5500, 500, programs,
            [_gpu_time(f"p{i}", 1 / count) for i in range(count)],
            # 64 contexts of half a GiB each would not fit.
            machine='{ devices = [{ context_memory = "128MiB" }] }'), count)


def everything():
    for family in (entitlements, limit_alone, partition, isolation, elastic, training_and_inference, priority,
                   gaps, long_kernel, many):
        yield from family()
