"""Reads the tests of a build from the files that CMake left for ctest, for machines without ctest.

The build and its sources may lie elsewhere than where they were made: paths in commands and
environments are moved along, and the Python that was found there becomes the one that runs here.
"""
import dataclasses
import pathlib
import re
import sys

# Bracket argument, quoted argument, bare word: all that CMake writes into these files.
TOKEN = re.compile(r'\[(=*)\[(.*?)\]\1\]|"((?:[^"\\]|\\.)*)"|([^\s()"]+)', re.S)
COMMAND = re.compile(r"^\s*(add_test|set_tests_properties|subdirs|include)\(", re.M)
PROPERTIES = {"LABELS", "TIMEOUT", "ENVIRONMENT", "WORKING_DIRECTORY", "SKIP_RETURN_CODE"}


@dataclasses.dataclass
class Test:
    name: str
    command: list
    labels: set = dataclasses.field(default_factory=set)
    timeout_s: float = 120
    environment: dict = dataclasses.field(default_factory=dict)
    folder: str = ""
    skip_code: int = -1


def words(text):
    for match in TOKEN.finditer(text):
        bracket, quoted, bare = match.group(2), match.group(3), match.group(4)
        if bracket is not None:
            yield bracket
        elif quoted is not None:
            yield re.sub(r"\\(.)", r"\1", quoted)
        else:
            yield bare


def arguments(text, start):
    """The words from `start`, just after the opening parenthesis, to the closing one."""
    position = start
    while text[position] != ")":
        match = TOKEN.match(text, position)
        position = match.end() if match else position + 1
    return list(words(text[start:position]))


def cached(build, name):
    pattern = re.compile(rf"^{name}:\w+=(.*)$", re.M)
    match = pattern.search((build / "CMakeCache.txt").read_text(encoding="utf-8"))
    return match.group(1) if match else ""


class Reader:
    def __init__(self, build, source):
        self.build = pathlib.Path(build).resolve()
        # The build folder first: it usually lies within the sources.
        self.moved = [(cached(self.build, "CMAKE_CACHEFILE_DIR"), str(self.build)),
                      (cached(self.build, "CMAKE_HOME_DIRECTORY"), str(source))]
        self.tests = {}

    def here(self, text):
        for old, new in self.moved:
            if old and (text == old or old + "/" in text or text.endswith("=" + old)):
                return text.replace(old, new)
        return text

    def add(self, name, command):
        if name.endswith("_NOT_BUILT"):  # CMake's stand-in for a test program that is not there
            return
        command = [self.here(word) for word in command]
        if re.fullmatch(r"python3[.\d]*", pathlib.Path(command[0]).name):
            command[0] = sys.executable
        self.tests[name] = Test(name, command, folder=str(self.build))

    def describe(self, name, values):
        test = self.tests.get(name)
        if test is None:
            return
        settings = {key: value for key, value in zip(values[::2], values[1::2]) if key in PROPERTIES}
        test.labels = {label for label in settings.get("LABELS", "").split(";") if label}
        test.timeout_s = float(settings.get("TIMEOUT", test.timeout_s))
        test.skip_code = int(settings.get("SKIP_RETURN_CODE", test.skip_code))
        test.folder = self.here(settings.get("WORKING_DIRECTORY", test.folder))
        pairs = [item for item in settings.get("ENVIRONMENT", "").split(";") if "=" in item]
        test.environment = dict(self.here(item).split("=", 1) for item in pairs)

    def read(self, path):
        if not path.exists():
            return
        text = path.read_text(encoding="utf-8")
        for match in COMMAND.finditer(text):
            found = arguments(text, match.end())
            if match.group(1) == "subdirs":
                for folder in found:
                    self.read(path.parent / folder / "CTestTestfile.cmake")
            elif match.group(1) == "include":
                self.read(pathlib.Path(self.here(found[0])))
            elif match.group(1) == "add_test":
                self.add(found[0], found[1:])
            else:
                self.describe(found[0], found[2:])


def read_tests(build, source):
    """All tests of the build, in order."""
    reader = Reader(build, source)
    reader.read(reader.build / "CTestTestfile.cmake")
    return list(reader.tests.values())
