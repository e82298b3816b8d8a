#!/usr/bin/env python3
"""The compatibility suite: NVIDIA's own libraries, PyTorch and other clients on the simulated GPU, each in a process and on a machine
of its own, once alone on the simulated driver and once on a share under `prorata run`.

    tests/compatibility/run.py --build BUILD --tier light|all [--only TEXT]

Writes what was found into docs/reports/compatibility.md, keeps there the rows of what was not run, and says when that
changes the page. What cannot be had is skipped by name. The last line counts.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
PAGE = ROOT / "docs" / "reports" / "compatibility.md"
SHARE_BYTES = 6 << 30


@dataclasses.dataclass
class Exercise:
    name: str  # the row's name in the page
    environment: str
    part: str  # of tests/compatibility/wheels.toml
    wheel: str  # whose version and size the row tells
    program: str  # tests/compatibility/exercise_PROGRAM.py
    arguments: tuple = ()
    kernels: bool = False  # wants the path of the image made of kernels.cu
    timeout_s: int = 600


def pytorch(name, program, *arguments):
    return Exercise(name, "cuda13", "torch", "torch", program, arguments)


def client(name, wheel, program, *arguments, environment="cuda13"):
    return Exercise(name, environment, "clients", wheel, program, arguments)


def cuda_exercises(major, suffix, cudnn):
    environment = f"cuda{major}"
    def one(name, part, wheel, program, **more):
        return Exercise(f"{name} {major}", environment, part, wheel, program, **more)
    return [
        one("cudart", "light", "nvidia-cuda-runtime" + suffix, "cudart", kernels=True),
        one("cuBLAS", "light", "nvidia-cublas" + suffix, "cublas"),
        one("cuBLASLt", "light", "nvidia-cublas" + suffix, "cublaslt"),
        one("NVRTC", "libraries", "nvidia-cuda-nvrtc" + suffix, "nvrtc"),
        one("cuFFT", "libraries", "nvidia-cufft" + suffix, "cufft"),
        one("cuRAND", "libraries", "nvidia-curand" + suffix, "curand"),
        one("cuDNN", "libraries", cudnn, "cudnn"),
    ]


EXERCISES = [*cuda_exercises(11, "-cu11", "nvidia-cudnn-cu11"),
             *cuda_exercises(12, "-cu12", "nvidia-cudnn-cu12"),
             *cuda_exercises(13, "", "nvidia-cudnn-cu13"),
             pytorch("PyTorch", "pytorch"),
             pytorch("PyTorch, expandable_segments", "pytorch", "expandable_segments:True"),
             pytorch("PyTorch, cudaMallocAsync", "pytorch", "backend:cudaMallocAsync"),
             pytorch("PyTorch: training", "pytorch_training"),
             pytorch("PyTorch: two processes", "pytorch_processes"),
             pytorch("PyTorch: torch.compile", "pytorch_compile"),
             client("CuPy", "cupy-cuda13x", "cupy"),
             client("JAX", "jax", "jax"),
             client("JAX, its pool taken at once", "jax", "jax", "preallocate"),
             client("JAX, no pool", "jax", "jax", "platform"),
             client("Numba", "numba-cuda", "numba"),
             client("ONNX Runtime", "onnxruntime-gpu", "onnxruntime"),
             client("CTranslate2", "ctranslate2", "ctranslate2", environment="cuda12"),
             client("CTranslate2, cub_caching", "ctranslate2", "ctranslate2", "cub_caching",
                    environment="cuda12"),
             client("bitsandbytes", "bitsandbytes", "bitsandbytes")]

INTRO = """# Compatibility suite

What NVIDIA's own libraries, and frameworks above them, do on the simulated GPU: alone, and on a share.
Written by `make test-compatibility`, and for the rows marked *light* by `make test-compatibility TIER=light`, which CI runs; do
not edit. Each exercise is one program of [tests/compatibility](../../tests/compatibility) on a simulated machine of its own.
Kernels take time and compute nothing; memory, streams, events, graphs and properties are checked.

- *alone*: on the simulated driver, without prorata.
- *on a share*: the same under `prorata run` with 6 GiB. The library must also see 6 GiB as the device's
  memory, and the machine's own account must never have more than 6 GiB in use.
- *version*: what the library reports of itself.

"""
HEAD = ("| library | version | wheel | MB | exercised | alone | on a share |\n"
        "|---|---|---|---|---|---|---|\n")


class Skipped(Exception):
    pass


def build_kernels(build):
    """kernels.cu as nvcc makes a fatbin of it."""
    nvcc = sorted(pathlib.Path(os.path.realpath(build / "venv-cuda13")).glob("**/bin/nvcc"))
    if not nvcc:
        return None
    out = build / "compatibility" / "kernels.fatbin"
    out.parent.mkdir(exist_ok=True)
    subprocess.run([nvcc[0], "-fatbin", "-arch=sm_90", "-o", out, ROOT / "tests" / "compatibility" / "kernels.cu"],
                   check=True)
    return out


def run_once(harness, exercise, python, arguments, on_a_share):
    """The exercise's report; raises AssertionError with what it wrote last."""
    machine = harness.Machine()
    try:
        # A home of its own: compiled kernels are kept there, and nothing is to be found compiled.
        environment = {"COMPATIBILITY_CUDA_MAJOR": exercise.environment.removeprefix("cuda"),
                       "HOME": str(machine.folder)}
        command = [python, ROOT / "tests" / "compatibility" / f"exercise_{exercise.program}.py", *arguments]
        if on_a_share:
            machine.start_agent()
            environment["COMPATIBILITY_TOTAL_BYTES"] = str(SHARE_BYTES)
            command = machine.command(["--memory", f"{SHARE_BYTES >> 30}GiB"], command)
        else:
            environment |= machine.bare_environment()
        status, out, err = machine.call(command, exercise.timeout_s, environment)
        if status != 0:
            raise AssertionError(f"exit status {status}\n{out[-2000:]}{err[-6000:]}")
        if on_a_share and (over := machine.usage()["peak_bytes"] - SHARE_BYTES) > 0:
            raise AssertionError(f"compatibility: FAILED at the limit: {over} bytes of the device above it")
        return json.loads(out.splitlines()[-1])
    finally:
        machine.close()


def last_step(text):
    failed = [line for line in text.splitlines() if line.startswith("compatibility: FAILED at ")]
    steps = [line for line in text.splitlines() if line.startswith("compatibility: ")]
    line = (failed or steps or ["compatibility: before its first step"])[-1].removeprefix("compatibility: ")
    return line.replace("|", "/")[:200]


def run_exercise(harness, exercise, build, kernels):
    """(row of the page, how many passed, [(name, output)] of those that failed)."""
    # pylint: disable-next=import-outside-toplevel
    import compatibility_wheels
    folder = build / "compatibility" / exercise.environment
    found = compatibility_wheels.wheels("all")[exercise.environment]
    stamp = folder / f".{exercise.part}"
    if not stamp.exists() or stamp.read_text() != compatibility_wheels.stamp_of(found[exercise.part]):
        raise Skipped(f"the wheels of [{exercise.environment}.{exercise.part}] are not in {folder}")
    if exercise.kernels and kernels is None:
        raise Skipped(f"no nvcc in {build}/venv-cuda13 (scripts/setup.sh cuda-venv)")
    arguments = [*exercise.arguments, *([kernels] if exercise.kernels else [])]
    results, report, failed = {}, None, []
    for way in ("alone", "on a share"):
        try:
            report = run_once(harness, exercise, folder / "bin" / "python", arguments,
                              way == "on a share")
            results[way] = "passed"
            print(f"compatibility: passed  {exercise.name}, {way}: version {report['version']}", flush=True)
        except AssertionError as error:
            results[way] = "FAILED: " + last_step(str(error))
            failed.append((f"{exercise.name}, {way}", str(error)))
            print(f"compatibility: FAILED  {exercise.name}, {way}:\n{error}", flush=True)
    version, size, _ = next(part[exercise.wheel] for part in found.values() if exercise.wheel in part)
    light = ", *light*" if exercise.part == "light" else ""
    row = (f"| {exercise.name}{light} | {report['version'] if report else '?'} | "
           f"{exercise.wheel} {version} | {size / 1e6:.0f} | "
           f"{'; '.join(report['done']) if report else ''} | {results['alone']} | "
           f"{results['on a share']} |\n")
    return row, len(results) - len(failed), failed


def write_page(rows):
    """Puts the new rows in the page; the others stay. True if that changes it."""
    before = PAGE.read_text() if PAGE.exists() else ""
    old = {line.split("|")[1].split(", *light*")[0].strip(): line for line in before.splitlines(keepends=True)
           if line.startswith("| ")}
    known = {exercise.name: rows.get(exercise.name) or old.get(exercise.name) for exercise in EXERCISES}
    after = INTRO + HEAD + "".join(row for row in known.values() if row)
    PAGE.write_text(after)
    return after != before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--tier", choices=("light", "all"), default="all")
    parser.add_argument("--only", default="", help="only exercises whose name has this text")
    args = parser.parse_args()
    build = args.build.resolve()
    os.environ["PRORATA_BUILD_DIR"] = str(build)
    import harness  # pylint: disable=import-outside-toplevel
    import test_report  # pylint: disable=import-outside-toplevel
    kernels = build_kernels(build)
    rows, passed, failed, skipped = {}, 0, [], 0
    for exercise in EXERCISES:
        if args.only not in exercise.name or (args.tier == "light" and exercise.part != "light"):
            continue
        try:
            rows[exercise.name], good, bad = run_exercise(harness, exercise, build, kernels)
            passed, failed = passed + good, failed + bad
        except Skipped as reason:
            skipped += 1
            print(f"SKIPPED {exercise.name}: {reason}", flush=True)
    if write_page(rows):
        print("compatibility: docs/reports/compatibility.md has changed: look at the difference (git diff docs/reports/compatibility.md), commit it")
    test_report.finish("compatibility", passed, failed, skipped)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
