#!/usr/bin/env python3
"""The checks that need no program to run: format, clang-tidy, layers, generated code, tidiness.

--format  clang-format 19 over the C++ sources (--fix rewrites them)
--tidy    clang-tidy 19 over the sources that the build compiles
--layers  a room includes only rooms above it; policy objects use no clock, file, socket or thread
--code    generated/ is what codegen/ makes of spec/
--scripts ruff over Python, shellcheck over shell scripts
--house   file and function length, leftover marks, dead files
--all     all of them
"""
import argparse
import ast
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE_DIRS = ("src", "sim", "apps", "bench", "tests", "examples")
CPP = (".cc", ".h", ".c")

# DESIGN §2, from the bottom up. A room may include itself and those before it; simgpu is a world of
# its own that product rooms must not know, and that knows none of them but base.
ROOMS = ("generated", "base", "policy", "protocol", "driver", "client", "agent", "cli", "simgpu")
ONLY = {"simgpu": {"generated", "base", "simgpu"}, "policy": {"base", "policy"},
        # Freestanding: it lives in somebody else's process.
        "client": {"generated", "protocol", "driver", "client"}}

# Beside src: the cluster simulator runs the product's policies on traces, and nothing of src knows it.
SIM_ONLY = {"base", "policy", "sim"}

POLICY_BANNED = re.compile(
    r"\b(clock_gettime|gettimeofday|time|nanosleep|clock_nanosleep|open(at)?(64)?|fopen(64)?|read|write|"
    r"socket|connect|accept4?|send(msg|to)?|recv(msg|from)?|poll|epoll_\w+|pthread_\w+|futex|syscall|"
    r"getenv|random|rand|getrandom|_ZNSt6chrono\S*now\S*|_ZNSt6thread\S*|_ZNSt5mutex\S*|"
    r"_ZNSt13random_device\S*|_ZNSt1[24]basic_[io]?fstream\S*)(@|$)")

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 90
TIDY_SOURCES_MAX = 16  # read as one
MARKS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def tracked(*suffixes):
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *SOURCE_DIRS],
                         cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [pathlib.Path(name) for name in sorted(set(out)) if name.endswith(suffixes) and (ROOT / name).exists()]


def check_format(fix):
    files = [str(path) for path in tracked(*CPP)]
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    done = subprocess.run(["clang-format-19", *mode, *files], cwd=ROOT, capture_output=True, text=True, check=False)
    bad = sorted(set(re.findall(r"^(\S+?):\d+:\d+: error", done.stderr, re.M)))
    return [f"{name}: not as clang-format 19 lays it out; run `make format`" for name in bad] or (
        [done.stderr.strip()] if done.returncode else [])


def check_scripts(build):
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.split("\n")
    shell, python = [], []
    for name in filter(lambda name: name and (ROOT / name).is_file(), names):
        with open(ROOT / name, "rb") as file:
            first = file.readline(64)
        if re.match(rb"#!.*\b(ba)?sh\b", first):
            shell.append(name)
        elif name.endswith(".py"):
            python.append(name)
    problems = []
    # Of ruff's rules those that find errors; style is pylint's.
    for command in (["shellcheck", "--format", "gcc", *shell],
                    [ROOT / build / "venv-ruff" / "bin" / "ruff", "check", "--isolated", "--quiet",
                     "--select", "E7,E9,F", "--ignore", "F403,F405", "--output-format", "concise", *python]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            problems += [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return problems


def tidy_commands(build):
    """{source: (folder, its compiler command without source and output)} of product sources. Without
    precompiled headers, and the warnings of GCC's that come with them: clang knows neither."""
    # GoogleTest's macros cost a minute a file and hide what the checks look for.
    wanted = {str(ROOT / path) for path in tracked(".cc")
              if path.parts[0] != "tests" and not path.stem.endswith(("_test", "_fuzz"))}
    found = {}
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text()):
        if entry["file"] in wanted:
            command = re.sub(r" -Winvalid-pch| -Wno-(?:restrict|stringop-\w+)| -include \S*/cmake_pch\.hxx"
                             r"| -o \S+ -c \S+", "", entry["command"])
            found.setdefault(entry["file"], (entry["directory"], command))
    return found


def tidy(sources, directory, command):
    """Findings in sources of one command, read as one: most of the time goes to the headers that they
    share. Where the compiler itself complains, which may be of two sources' names that are alike, as two
    halves, to the single source."""
    with tempfile.TemporaryDirectory(prefix="prorata-tidy-") as folder:
        one = pathlib.Path(folder, "sources.cc")
        one.write_text("".join(f'#include "{source}"\n' for source in sources))
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(
            [{"directory": directory, "file": str(one), "command": f"{command} -c {one}"}]))
        done = subprocess.run(
            ["clang-tidy-19", "--quiet", f"--config-file={ROOT}/.clang-tidy", "--checks=-bugprone-suspicious-include",
             f"--header-filter=^{ROOT}/({'|'.join(SOURCE_DIRS)})/", "-p", folder, one],
            cwd=ROOT, capture_output=True, text=True, check=False)
    if "[clang-diagnostic-" in done.stdout and len(sources) > 1:
        half = len(sources) // 2
        return tidy(sources[:half], directory, command) | tidy(sources[half:], directory, command)
    found = {line for line in done.stdout.splitlines() if re.search(r": (error|warning): ", line)}
    if done.returncode and not found:
        found.add(f"clang-tidy of {', '.join(sources)} ended with {done.returncode}: {done.stderr[-500:]}")
    return found


def check_tidy(build, each):
    """`each`: every source by itself, which also finds what leans on another's includes."""
    database = pathlib.Path(build, "compile_commands.json")
    if not database.exists():
        return [f"{database} is not there; run `make build` first"]
    alike = collections.defaultdict(list)
    for source, (directory, command) in sorted(tidy_commands(build).items()):
        alike[(directory, command, pathlib.Path(source).parent)].append(source)
    most = 1 if each else TIDY_SOURCES_MAX
    parts = [(sources[i:i + most], directory, command)
             for (directory, command, _), sources in alike.items() for i in range(0, len(sources), most)]
    parts.sort(key=lambda part: -len(part[0]))
    problems = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(lambda part: tidy(*part), parts):
            problems.update(line.replace(f"{ROOT}/", "") for line in lines)
    return sorted(problems)


def includes(path):
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            yield number, match.group(1)


def check_layers(build):
    problems = []
    for path in tracked(".cc", ".h"):
        if path.parts[0] == "sim":
            problems += [f"{path}:{number}: sim must not include {name}" for number, name in includes(path)
                         if name.split("/")[0] not in SIM_ONLY]
        if path.parts[0] != "src":
            continue
        room = path.parts[1]
        allowed = ONLY.get(room, set(ROOMS[: ROOMS.index(room) + 1]))
        test = path.stem.endswith(("_test", "_fuzz", "_bench"))
        for number, name in includes(path):
            target = name.split("/")[0]
            if target not in ROOMS:
                problems.append(f"{path}:{number}: include \"{name}\" from the top: room/file.h")
            elif target not in allowed and not (test and target in ROOMS[: ROOMS.index(room)]):
                problems.append(f"{path}:{number}: room {room} must not include {name}")
    archive = pathlib.Path(build or "", "src/policy/libprorata_policy.a")
    if not archive.exists():
        return problems + [f"{archive} is not there: the policy's symbols cannot be checked; run `make build`"]
    undefined = subprocess.run(["nm", "--undefined-only", "--format=just-symbols", archive],
                               capture_output=True, text=True, check=True).stdout.split()
    return problems + [f"src/policy uses {name}: policies take time and state in, and touch nothing else"
                       for name in sorted(set(undefined)) if POLICY_BANNED.match(name)]


def check_generated():
    done = subprocess.run([sys.executable, "codegen/generate.py", "--check"], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [(done.stdout + done.stderr).strip()]


def depth(line):
    return len(line) - len(line.lstrip())


def long_functions(path, lines):
    """Of C++ as clang-format lays it out, at any depth (of classes, in namespaces, lambdas): a body
    ends where a line is less deep than its first."""
    for number, line in enumerate(lines[:-1], 1):
        if not re.search(r"[)\]>\w] \{$|\)\{$", line) or not re.search(r"[)\]]|^ +\w+ \{$", line) or re.match(
                r" *(\} *)?(namespace|struct|class|enum|union|extern|switch|if|for|while|do|else|case|try|catch)\b", line):
            continue
        inside = depth(lines[number])
        end = next((after for after in range(number, len(lines)) if lines[after].strip()
                    and not lines[after].startswith("#") and depth(lines[after]) < inside), number)
        if end - number > FUNCTION_LINES_MAX:
            yield f"{path}:{number}: a function of {end - number} lines; {FUNCTION_LINES_MAX} is the most"


def long_python_functions(path, text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = node.end_lineno - node.lineno
            if length > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: a function of {length} lines; {FUNCTION_LINES_MAX} is the most"


def check_house():
    problems = []
    listed = "\n".join((ROOT / path).read_text() for path in map(pathlib.Path, subprocess.run(
        ["git", "ls-files", "*CMakeLists.txt", "cmake/*"], cwd=ROOT, capture_output=True, text=True,
        check=True).stdout.split()) if (ROOT / path).exists())
    for path in tracked(*CPP, ".py"):
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        if len(lines) > FILE_LINES_MAX:
            problems.append(f"{path}: {len(lines)} lines; {FILE_LINES_MAX} is the most for one reading")
        problems += (long_python_functions(path, "\n".join(lines)) if path.suffix == ".py"
                     else long_functions(path, lines))
        problems += [f"{path}:{number}: a leftover mark: {line.strip()[:60]}"
                     for number, line in enumerate(lines, 1) if MARKS.search(line)]
        if path.suffix in (".cc", ".c") and path.name not in listed and not any(
                path.name in test.read_text() for test in (ROOT / path).parent.glob("*.py")):
            problems.append(f"{path}: no CMakeLists.txt names it, and no test beside it compiles it")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("format", "tidy", "layers", "code", "scripts", "house", "all", "fix"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--each", action="store_true", help="clang-tidy over each source by itself: six times as long")
    parser.add_argument("--build", default="build")
    args = parser.parse_args()
    steps = [("format", lambda: check_format(args.fix)), ("house", check_house),
             ("layers", lambda: check_layers(args.build)), ("code", check_generated), ("scripts", lambda: check_scripts(args.build)),
             ("tidy", lambda: check_tidy(args.build, args.each))]
    failed = 0
    for name, step in steps:
        if not (args.all or getattr(args, name)):
            continue
        problems = step()
        failed += bool(problems)
        print(f"lint {name}: {'ok' if not problems else f'{len(problems)} to mend'}")
        for problem in problems:
            print(f"  {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
