#!/usr/bin/env python3
"""The checks that need no program to run: format, clang-tidy, layers, generated code, tidiness.

--format  clang-format 19 over the C++ sources (--fix rewrites them)
--tidy    clang-tidy over the sources that the build compiles
--layers  a component and its folders include only those above; policy objects use no clock, file, socket or thread
--code    generated/ is what codegen/ makes of spec/, and docs/reference/control.md what the API's tables say
--scripts ruff over Python, shellcheck over shell scripts
--size    file and function length, leftover marks, dead files
--names   no two sources of a folder that have a function of one name and as many parameters for themselves
--words   no word that the glossary replaced
--docs    links lead somewhere, every page is reachable, references name what the code has
--all     all of them
"""
import argparse
import ast
import collections
import concurrent.futures
import pathlib
import re
import subprocess
import sys

import tidy

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE_DIRS = ("src", "sim", "apps", "bench", "tests", "examples")
CPP = (".cc", ".h", ".c")

# The components of src/ and the folders in them, from the bottom up: each includes itself and what
# stands before it. None stands for the files beside the folders.
LAYERS = {
    "generated": (),
    "base": (),
    "shm": (),
    "wire": (),
    "api": (),
    "policy": ("memory", "compute", "placement"),
    "driver": (),
    "client": ("platform", "session", "memory", "code", "compute", "nvml", "entry"),
    "agent": ("runtime", "config", "share", "compute", "memory", "containers", "node", "server", "testing"),
    "cli": ("text", "top", "options", None),
    "kubernetes": ("api", "notices", "dra", "pods", "resize", "admission", "plugin", "nri", "kai", "extender",
                   "kubelet", "kubectl"),
}
COMPONENTS = tuple(LAYERS)
# Less than what stands before them.
ONLY = {
    "shm": {"shm"},
    "wire": {"wire", "shm"},
    "policy": {"base", "policy"},
    # Freestanding: it lives in somebody else's process.
    "client": {"generated", "shm", "wire", "driver", "client"},
}
# Folders beside each other: neither includes the other.
APART = ({"client/memory", "client/compute", "client/nvml"}, {"client/code", "client/compute", "client/nvml"},
         {"policy/memory", "policy/compute", "policy/placement"})
# Beside src/. The simulated GPU knows nothing of the product; what simulates a node or a cluster runs
# the product's own code.
SIM = {
    "core": {"base", "sim/core"},
    "cuda": {"base", "generated", "sim", "sim/core", "sim/cuda"},
    "nvml": {"base", "generated", "sim", "sim/core", "sim/nvml"},
    "policies": {"base", "policy", "sim/policies"},
    "node": {"base", "shm", "wire", "api", "policy", "client", "agent", "sim/core", "sim/policies", "sim/node"},
    "cluster": {"base", "policy", "sim/cluster"},
    "host_kernel.h": set(),
}

POLICY_BANNED = re.compile(
    r"\b(clock_gettime|gettimeofday|time|nanosleep|clock_nanosleep|open(at)?(64)?|fopen(64)?|read|write|"
    r"socket|connect|accept4?|send(msg|to)?|recv(msg|from)?|poll|epoll_\w+|pthread_\w+|futex|syscall|"
    r"getenv|random|rand|getrandom|_ZNSt6chrono\S*now\S*|_ZNSt6thread\S*|_ZNSt5mutex\S*|"
    r"_ZNSt13random_device\S*|_ZNSt1[24]basic_[io]?fstream\S*)(@|$)")

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 90
FOLDER_SOURCES_MAX = 30
README_LINES_MAX = 150
# Page of docs/, sources, and what of them the page must name: every metric, every event, and every word
# and message that a member writes.
NAMED_IN_DOCS = (
    ("reference/metrics.md", "src/agent/**/metrics.cc", r'"(prorata_\w+)"'),
    ("reference/events.md", "src/**/event.cc", r'\{EventKind::\w+, "(\w+)"\}'),
    ("design/trust.md", "src/**/usage_file.h", r"std::atomic<\w+> (\w+);"),
    ("design/trust.md", "src/wire/messages.h", r"k(\w+) = \d+, +// (?:member|anybody) -> agent"))
CHECKERS = pathlib.Path("venv-checkers", "bin")  # in the build folder
TESTED_BY_FOLDER = ("src/policy",)  # FOLDERS of prorata_test
# The left column of the glossary: words that were replaced by the field's (docs/design/glossary.md), as
# names in the code, as messages and in documents. Ordinary English stays where it means what it says.
BANNED_WORDS = re.compile(
    r"\bcompany\b|\blocal rule\b|LocalBucket|BeginAnew|Silence\b|SilentNs|silent_(?:ms|ns|seconds)|SilentAgent|"
    r"\bsilent agent\b|\b[cC]alled back\b|CalledBack|called_back|\b[pP]assed over\b|PassedOver|passed_over|TakesPart|"
    r"\b(?:hungry|lifted|successor)\b|kPromised|Story|_story\b|\bstory\b|\b[uU]nseen\b|Unseen|\bguest\.h\b|\.Say\(|"
    r"\bLine\(\).Say|class Holding\b|\bbooks\b|Books\b|\bkeeper\b(?!\")|Keeper|PeerBox|\b[dD]oomed\b|Doomed|"
    r"[sS]lowness|WhySlow|why_slow|[cC]annot_be_held|CannotBeHeld|\bcannot be held\b|\b[mM]eetings?\b|Meeting|"
    r"\b[bB]urial|Burial|\b[cC]orpse|\b[rR]ampage|KillStorm|MarketStall|\b[rR]ooms\b|\b[zZ]oo\b|zoo_|ZOO|kMost[A-Z0-9]|kLeast[A-Z0-9]|"
    r"WhileBusy|kSeldom|\bTouch(?:All)?\(|\bTell[A-Z]?\w*\(|\bComplain\(|(?<=[a-z])Told\b|GangTurn|kWaitsForTurn")
WORDS_PAGE = "docs/design/glossary.md"
WORDS_EXEMPT = (WORDS_PAGE, "scripts/lint.py", "tests/repository/test_lint.py")  # they name them
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
                    [ROOT / build / CHECKERS / "ruff", "check", "--isolated", "--quiet",
                     "--select", "E7,E9,F", "--ignore", "F403,F405", "--output-format", "concise", *python]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            problems += [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return problems


def check_tidy(build, each):
    # GoogleTest's macros cost a minute a file and hide what the checks look for.
    wanted = {str(ROOT / path) for path in tracked(".cc")
              if path.parts[0] != "tests" and not path.stem.endswith(("_test", "_fuzz"))}
    return tidy.check(build, ROOT / build / CHECKERS / "clang-tidy", wanted, SOURCE_DIRS, each)


def includes(path):
    for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s+"([^"]+)"', line):
            yield number, match.group(1)


def layer(name):
    """Component and folder of a path from src/: ("client", "memory"); (component, None) beside the folders."""
    parts = name.split("/")
    inner = parts[1] if len(parts) > 2 and LAYERS.get(parts[0]) else None
    return parts[0], inner


def may_include(component, inner, target, target_inner):
    if target != component:
        return target in ONLY.get(component, COMPONENTS[: COMPONENTS.index(component)])
    order = LAYERS[component]
    if inner == target_inner or not order:
        return True
    if any({f"{component}/{inner}", f"{component}/{target_inner}"} <= apart for apart in APART):
        return False
    return inner in order and target_inner in order[: order.index(inner)]


def sim_may_include(name):
    """What a source under sim/ may include, as a function of the path included."""
    allowed = SIM.get(name.split("/")[1], set())
    def allows(target):
        parts = target.split("/")
        return (parts[0] if parts[0] != "sim" else "/".join(parts[:2] if len(parts) > 2 else parts[:1])) in allowed
    return allows


def check_layers(build):
    problems = []
    for path in tracked(".cc", ".h"):
        test = is_test(path)
        if path.parts[0] == "sim":
            allows = sim_may_include(str(path))
            problems += [f"{path}:{number}: {'/'.join(path.parts[:2])} must not include {name}"
                         for number, name in includes(path) if not allows(name) and not test]
        if path.parts[0] != "src":
            continue
        component, inner = layer(str(path.relative_to("src")))
        if component not in LAYERS or (LAYERS[component] and inner not in LAYERS[component]):
            problems.append(f"{path}: in no folder of LAYERS (scripts/lint.py)")
            continue
        for number, name in includes(path):
            target, target_inner = layer(name)
            if target not in LAYERS:
                problems.append(f"{path}:{number}: include \"{name}\" from the top: component/file.h")
            elif not may_include(component, inner, target, target_inner):
                if test and COMPONENTS.index(target) <= COMPONENTS.index(component):
                    continue
                where = component if target != component else f"{component}/{inner}"
                problems.append(f"{path}:{number}: {where} must not include {name}")
    archive = pathlib.Path(build or "", "src/policy/libprorata_policy.a")
    if not archive.exists():
        return problems + [f"{archive} is not there: the policy's symbols cannot be checked; run `make build`"]
    undefined = subprocess.run(["nm", "--undefined-only", "--format=just-symbols", archive],
                               capture_output=True, text=True, check=True).stdout.split()
    return problems + [f"src/policy uses {name}: policies take time and state in, and touch nothing else"
                       for name in sorted(set(undefined)) if POLICY_BANNED.match(name)]


def check_words():
    problems = []
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(lambda name: name and (ROOT / name).is_file(), names):
        if name.endswith((".svg", ".csv", ".json", ".gz", ".bin")) or name in WORDS_EXEMPT:
            continue
        try:
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        problems += [f"{name}:{number}: '{match.group(0)}' is a word of before: {WORDS_PAGE} has the field's"
                     for number, line in enumerate(lines, 1) if (match := BANNED_WORDS.search(line))]
    return problems


def check_generated(build):
    commands = [[sys.executable, "codegen/generate.py", "--check"]]
    reference = ROOT / build / "bin" / "api-reference"
    if reference.exists():
        commands.append([reference, "--check", "docs/reference/control.md"])
    problems = [] if reference.exists() else [
        f"{reference} is not there: docs/reference/control.md cannot be checked; run `make generate`"]
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        problems += [(done.stdout + done.stderr).strip()] if done.returncode else []
    return problems


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


def is_test(path):
    return path.stem.endswith(("_test", "_fuzz", "_bench")) or path.stem.startswith("testing_")


def crowded_folders(paths):
    """Folders with more sources beside their tests than are taken in at a look."""
    counts = collections.Counter(path.parent for path in paths if path.parts[0] != "tests" and not is_test(path))
    return [f"{folder}: {count} sources; {FOLDER_SOURCES_MAX} is the most"
            for folder, count in sorted(counts.items()) if count > FOLDER_SOURCES_MAX]


def check_size():
    problems = crowded_folders(tracked(*CPP, ".py"))
    listed = "\n".join((ROOT / path).read_text() for path in map(pathlib.Path, subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*CMakeLists.txt", "cmake/*"], cwd=ROOT, capture_output=True, text=True,
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


def count_parameters(text, start):
    """Of the list that opens at `start`."""
    depth, count = 0, 0
    for at in range(start, len(text)):
        before, here = text[at - 1], text[at]
        depth += here in "([{<"
        depth -= here in ")]}" or (here == ">" and before != "-")
        if not depth:
            return count + 1 if text[start + 1:at].strip() else 0
        count += here == "," and depth == 1
    return count


def own_functions(text):
    """(name, number of parameters) of those in anonymous namespaces, as clang-format lays them out."""
    for block in re.findall(r"^namespace \{\n(.*?)^\}  // namespace$", text, re.M | re.S):
        for found in re.finditer(r"^(?!using|return|TEST|struct|class|extern|__thread)(?:[\w:]+(?:<.*?>)?[ &*]+)+?(\w+)\(", block, re.M):
            yield found[1], count_parameters(block, found.end() - 1)


def check_names():
    """A target's sources are compiled as few (prorata_unity): functions of one name become overloads there,
    and a call may mean the other's without an error. Tests are compiled apart, fuzzers singly."""
    having = collections.defaultdict(set)
    for path in tracked(".cc"):
        if path.stem.endswith("_fuzz"):
            continue
        kind = "_test" if path.stem.endswith("_test") else ""
        apart = path.parts[0] == "tests" or kind and "/".join(path.parts[:2]) in TESTED_BY_FOLDER
        group = path.parent if apart else pathlib.Path(*path.parts[:2])
        for name, parameters in own_functions((ROOT / path).read_text(encoding="utf-8")):
            having[group, kind, name, parameters].add(str(path.relative_to(group)))
    return [f"{group}: {' and '.join(sorted(files))} each have a {name}() of {parameters} parameters; rename one"
            for (group, _, name, parameters), files in having.items() if len(files) > 1]


def anchors(path):
    """Of a page's headings, as GitHub makes them."""
    found, fenced = set(), False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and (match := re.match(r"#+ (.*)", line)):
            words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
            found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


def links(root, page):
    """(line number, target file, anchor) of each relative link of a page."""
    fenced = False
    for number, line in enumerate((root / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        for target in [] if fenced else re.findall(r"\]\(([^)\s]+)\)", line):
            if not re.match(r"[a-z]+:", target):
                name, _, anchor = target.partition("#")
                yield number, (root / page.parent / name).resolve() if name else root / page, anchor


def check_docs(root=ROOT):
    """Pages of the repository: every relative link leads to a file or heading, and so does every page that
    other files name; README fits; each page of docs/ can be reached from its index; and NAMED_IN_DOCS."""
    pages = [pathlib.Path(name) for name in subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=root,
        capture_output=True, text=True, check=True).stdout.split("\n") if name and (root / name).exists()]
    problems, leads = [], {}
    for page in pages:
        leads[(root / page).resolve()] = reached = set()
        for number, target, anchor in links(root, page):
            if not target.exists():
                problems.append(f"{page}:{number}: a link to {target}, which does not exist")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                problems.append(f"{page}:{number}: {target.name} has no heading #{anchor}")
            reached.add(target)
    readme = len((root / "README.md").read_text(encoding="utf-8").splitlines())
    if readme > README_LINES_MAX:
        problems.append(f"README.md: {readme} lines; {README_LINES_MAX} is the most: move text to docs/")
    seen, todo = set(), [(root / "docs" / "README.md").resolve()]
    while todo:
        if (page := todo.pop()) not in seen:
            seen.add(page)
            todo += [target for target in leads.get(page, ()) if target in leads]
    problems += [f"{page}: no link leads to it from docs/README.md" for page in pages
                 if page.parts[0] == "docs" and (root / page).resolve() not in seen]
    named = subprocess.run(["git", "grep", "-nEIo", "--untracked", r"\bdocs/[A-Za-z0-9_/.-]+\.(md|svg)", "--", ".",
                            ":!*.md", ":!tests/repository"], cwd=root, capture_output=True, text=True, check=False)
    for line in named.stdout.splitlines():
        place, _, name = line.rpartition(":")
        if not (root / name).exists():
            problems.append(f"{place}: names {name}, which does not exist")
    for document, source, pattern in NAMED_IN_DOCS:
        text = (root / "docs" / document).read_text(encoding="utf-8")
        names = {name for path in root.glob(source) for name in re.findall(pattern, path.read_text(encoding="utf-8"))}
        problems += [f"docs/{document} does not name {name}" for name in sorted(names) if f"`{name}`" not in text]
        if not names:
            problems.append(f"{source}: no names found there to look for in docs/{document}")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("format", "tidy", "layers", "code", "scripts", "size", "names", "docs", "words", "all", "fix"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--each", action="store_true", help="clang-tidy over each source by itself: six times as long")
    parser.add_argument("--build", default="build")
    args = parser.parse_args()
    # Most of the time is clang-tidy's, which leaves a processor idle in the end.
    steps = {"tidy": lambda: check_tidy(args.build, args.each), "format": lambda: check_format(args.fix), "size": check_size,
             "names": check_names, "docs": check_docs, "words": check_words, "layers": lambda: check_layers(args.build),
             "code": lambda: check_generated(args.build), "scripts": lambda: check_scripts(args.build)}
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        begun = {name: pool.submit(step) for name, step in steps.items() if args.all or getattr(args, name)}
        for name, step in reversed(begun.items()):
            problems = step.result()
            failed += bool(problems)
            print(f"lint {name}: {'ok' if not problems else f'{len(problems)} to mend'}")
            for problem in problems:
                print(f"  {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
