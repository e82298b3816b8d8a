"""clang-tidy over the sources that a build compiles, up to sixteen of a target read as one.

What was read without a finding is not read again, not even in another clone, until something that it depends on changes: the
sources, headers beneath the clone that they include, the compiler's options, .clang-tidy, this file, clang-tidy, or
any package of the machine (for the headers of the system). `prorata/tidy` in the user's cache folder keeps an empty file
for each. Without Debian's list of packages nothing is kept."""
import collections
import concurrent.futures
import contextlib
import copy
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = pathlib.Path("/var/lib/dpkg/status")
SOURCES_MAX = 16  # read as one
KEPT_FOR_S = 30 * 24 * 3600  # since it last saved something
# What a compiler command says to GCC alone, its precompiled header, and what it compiles.
NOT_FOR_CLANG = re.compile(r" -Winvalid-pch| -Wno-(?:restrict|stringop-\w+|subobject-linkage)| --param=\S+"
                           r"| -include \S*/cmake_pch\.hxx| -o \S+ -c \S+")
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.M)


def commands(build, wanted):
    """{source: (folder, its compiler command as clang takes it, without source and output)} of the sources `wanted`."""
    found = {}
    for entry in json.loads(pathlib.Path(build, "compile_commands.json").read_text(encoding="utf-8")):
        command = NOT_FOR_CLANG.sub("", entry["command"])
        for source in wanted & compiled_sources(entry["file"]):
            found.setdefault(source, (entry["directory"], command))
    return found


def compiled_sources(path):
    """What one compiler command compiles: a source, or those that CMake's unity build has it read as one."""
    if not re.fullmatch(r"unity_.*_cxx\.cxx", pathlib.Path(path).name):
        return {path}
    return set(re.findall(r'^#include "(.+)"$', pathlib.Path(path).read_text(encoding="utf-8"), re.M))


def read(tool, sources, directory, command, folders):
    """Findings in sources of one command, read as one: most of the time goes to the headers that they
    share. Where the compiler itself complains of a line, which may be of two sources' names that are alike, as
    two halves, to the single source."""
    with tempfile.TemporaryDirectory(prefix="prorata-tidy-") as folder:
        one = pathlib.Path(folder, "sources.cc")
        one.write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
        pathlib.Path(folder, "compile_commands.json").write_text(json.dumps(
            [{"directory": str(directory), "file": str(one), "command": f"{command} -c {one}"}]), encoding="utf-8")
        done = subprocess.run(
            [tool, "--quiet", f"--config-file={ROOT}/.clang-tidy", "--checks=-bugprone-suspicious-include",
             f"--header-filter=^{ROOT}/({'|'.join(folders)})/", "-p", folder, one],
            cwd=ROOT, capture_output=True, text=True, check=False)
    if re.search(r"^/.*\[clang-diagnostic-", done.stdout, re.M) and len(sources) > 1:
        half = len(sources) // 2
        return (read(tool, sources[:half], directory, command, folders)
                | read(tool, sources[half:], directory, command, folders))
    found = {line for line in done.stdout.splitlines() if re.search(r": (error|warning): ", line)}
    if done.returncode and not found:
        found.add(f"clang-tidy of {', '.join(sources)} ended with {done.returncode}: "
                  f"{(done.stdout + done.stderr)[-500:]}")
    return found


class Clean:
    """What was read without a finding, by a hash of all that decides it."""

    def __init__(self, tool, folder=None, packages=PACKAGES):
        home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        self.folder = pathlib.Path(folder or pathlib.Path(home, "prorata", "tidy"))
        self.machine = None
        if packages.exists():
            version = subprocess.run([tool, "--version"], capture_output=True, check=False).stdout
            parts = [version, packages.read_bytes(), pathlib.Path(__file__).read_bytes(),
                     (ROOT / ".clang-tidy").read_bytes()]
            self.machine = [hashlib.sha256(part).hexdigest() for part in parts]
        self.includes = functools.cache(self.includes)
        self.content = functools.cache(self.content)

    @staticmethod
    def content(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    @staticmethod
    def includes(path):
        return tuple(INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace")))

    def files(self, sources, command):
        """The sources and all headers that they may include, but those of the system."""
        folders = [pathlib.Path(folder) for folder in re.findall(r"-(?:I|isystem) ?(\S+)", command)
                   if not folder.startswith("/usr/")]
        forced = re.findall(r"-include (\S+)", command)
        seen, todo = set(), [pathlib.Path(path) for path in (*sources, *forced)]
        while todo:
            path = todo.pop()
            if path in seen:
                continue
            seen.add(path)
            for name in self.includes(path):
                todo += [found for folder in (path.parent, *folders) if (found := folder / name).is_file()]
        return sorted({path.resolve() for path in seen})

    def key(self, sources, command, folders):
        """Alike in every clone. `folders`: those in whose headers findings count."""
        files = [(str(path).replace(f"{ROOT}/", ""), self.content(path)) for path in self.files(sources, command)]
        names = [str(source).replace(f"{ROOT}/", "") for source in sources]
        told = json.dumps([self.machine, command.replace(str(ROOT), "."), names, files, sorted(folders)])
        return self.folder / hashlib.sha256(told.encode()).hexdigest()

    def holds(self, key):
        try:
            os.utime(key)
        except OSError:
            return False
        return self.machine is not None

    def add(self, key, *decided_by):
        """Unless a file has changed since `key` was made by these."""
        if self.machine is None or key != self.anew().key(*decided_by):
            return
        with contextlib.suppress(OSError):  # then nothing is kept
            self.folder.mkdir(parents=True, exist_ok=True)
            key.touch()

    def anew(self):
        """The same, that has read no file yet."""
        other = copy.copy(self)
        other.includes, other.content = functools.cache(Clean.includes), functools.cache(Clean.content)
        return other

    def forget(self):
        for key in self.folder.glob("*"):
            with contextlib.suppress(OSError):  # another clone's check was faster
                if key.stat().st_mtime < time.time() - KEPT_FOR_S:
                    key.unlink()


def check(build, tool, wanted, folders, each, clean=None):
    """`each`: every source by itself, which also finds what leans on another's includes."""
    if not pathlib.Path(build, "compile_commands.json").exists():
        return [f"{build}/compile_commands.json is not there; run `make build` first"]
    clean = clean or Clean(tool)
    alike = collections.defaultdict(list)
    for source, (directory, command) in sorted(commands(build, wanted).items()):
        alike[(directory, command)].append(source)
    most = 1 if each else SOURCES_MAX
    parts = [(sources[i:i + most], directory, command)
             for (directory, command), sources in alike.items() for i in range(0, len(sources), most)]
    parts.sort(key=lambda part: -len(part[0]))

    def findings(part):
        sources, directory, command = part
        key = clean.key(sources, command, folders)
        if clean.holds(key):
            return set()
        if not (found := read(tool, sources, directory, command, folders)):
            clean.add(key, sources, command, folders)
        return found

    problems = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(findings, parts):
            problems.update(line.replace(f"{ROOT}/", "") for line in lines)
    clean.forget()
    return sorted(problems)
