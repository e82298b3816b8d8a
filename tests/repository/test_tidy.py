"""What scripts/tidy.py has clang-tidy read, and what it need not read again."""
import json
import pathlib
import tempfile
import unittest

import pytest

import tidy

pytestmark = pytest.mark.unit

# Counts its runs, and finds what a source says of itself.
TOOL = """#!/bin/sh
[ "$1" = --version ] && exec cat "{folder}/version"
for last; do :; done
echo run >> "{folder}/runs"
for source in $(sed 's/#include "\\(.*\\)"/\\1/' "$last"); do grep -H 'warning: ' "$source"; done
exit 0
"""


class Reading(unittest.TestCase):
    def test_clang_is_asked_for_nothing_that_only_gcc_knows(self):
        command = ("/usr/bin/c++ -Ia -O2 --param=ggc-min-heapsize=1048576 -Winvalid-pch -include /b/cmake_pch.hxx "
                   "-Wno-restrict -Wall -o a.o -c /a.cc")
        self.assertEqual(tidy.NOT_FOR_CLANG.sub("", command), "/usr/bin/c++ -Ia -O2 -Wall")

    def test_what_clang_does_not_know_is_said_once_of_all_sources(self):
        """Asking each source by itself says no more and takes several times as long."""
        with tempfile.TemporaryDirectory() as folder:
            tool = pathlib.Path(folder, "tool")
            tool.write_text("#!/bin/sh\necho \"error: argument unused during compilation: '--x' "
                            "[clang-diagnostic-unused-command-line-argument]\"\nexit 1\n")
            tool.chmod(0o755)
            (found,) = tidy.read(tool, ["/a.cc", "/b.cc"], folder, "c++ --x", ("src",))
        self.assertIn("of /a.cc, /b.cc ended with 1: error: argument unused during compilation: '--x'", found)


class Again(unittest.TestCase):
    """What is read again is what could have another finding."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.write("version", "1")
        self.write("packages", "libc 1")
        self.write("a.cc", '#include "far/a.h"\n')
        self.write("b.cc", "int b;\n")
        self.write("far/a.h", '#  include <c.h>\n#include <vector>\n')
        self.write("else/c.h", "int c;\n")
        self.write("else/d.h", "int d;\n")
        self.write("tool", TOOL.format(folder=self.folder))
        (self.folder / "tool").chmod(0o755)
        self.flags, self.counts = "-O2", ("src",)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def check(self, each=True):
        """(findings, how often the tool ran)."""
        sources = [str(self.folder / name) for name in ("a.cc", "b.cc")]
        self.write("compile_commands.json", json.dumps(
            [{"directory": str(self.folder), "file": source,
              "command": f"c++ {self.flags} -I{self.folder}/else -o a.o -c {source}"} for source in sources]))
        clean = tidy.Clean(self.folder / "tool", self.folder / "clean", self.folder / "packages")
        self.write("runs", "")
        found = tidy.check(self.folder, self.folder / "tool", set(sources), self.counts, each, clean)
        return found, (self.folder / "runs").read_text(encoding="utf-8").count("run")

    def test_nothing_where_nothing_changed(self):
        self.assertEqual(self.check(), ([], 2))
        self.assertEqual(self.check(), ([], 0))

    def test_a_source_that_changed(self):
        self.check()
        self.write("b.cc", "int b = 1;\n")
        self.assertEqual(self.check(), ([], 1))

    def test_a_header_that_one_includes_by_way_of_another(self):
        self.check()
        self.write("else/c.h", "int c = 1;\n")
        self.assertEqual(self.check(), ([], 1))

    def test_all_for_a_header_that_the_compiler_is_told_to_include(self):
        self.flags = f"-include {self.folder}/else/d.h"
        self.check()
        self.write("else/d.h", "int d = 1;\n")
        self.assertEqual(self.check(), ([], 2))

    def test_all_for_another_folder_in_which_findings_count(self):
        self.check()
        self.counts = ("src", "tests")
        self.assertEqual(self.check(), ([], 2))

    def test_a_source_that_changed_while_it_was_read(self):
        """As it was it had a finding, which is there again when that is undone."""
        before = "int b;  // b: warning: it is b\n"
        self.write("b.cc", before)
        self.write("tool", TOOL.format(folder=self.folder).replace("for source", f"echo > {self.folder}/b.cc\nfor source"))
        self.assertEqual(self.check(each=False), ([], 1))
        self.write("tool", TOOL.format(folder=self.folder))
        self.write("b.cc", before)
        self.assertEqual(len(self.check(each=False)[0]), 1)

    def test_not_for_a_header_that_none_includes(self):
        self.check()
        self.write("else/d.h", "int d = 1;\n")
        self.assertEqual(self.check(), ([], 0))

    def test_a_header_that_is_found_sooner(self):
        self.check()
        self.write("far/c.h", "int c;\n")
        self.assertEqual(self.check(), ([], 1))

    def test_all_for_another_option_tool_or_package(self):
        self.check()
        self.flags = "-O1"
        self.assertEqual(self.check(), ([], 2))
        self.write("version", "2")
        self.assertEqual(self.check(), ([], 2))
        self.write("packages", "libc 2")
        self.assertEqual(self.check(), ([], 2))

    def test_what_has_a_finding_each_time(self):
        self.write("b.cc", "int b;  // b: warning: it is b\n")
        for _ in range(2):
            found, runs = self.check()
            self.assertEqual(found, [f"{self.folder}/b.cc:int b;  // b: warning: it is b"])
        self.assertEqual(runs, 1)

    def test_those_that_were_read_as_one_as_one(self):
        self.assertEqual(self.check(each=False), ([], 1))
        self.assertEqual(self.check(each=False), ([], 0))
        self.write("b.cc", "int b = 1;\n")
        self.assertEqual(self.check(each=False), ([], 1))

    def test_all_each_time_where_packages_are_not_known(self):
        self.check()
        (self.folder / "packages").unlink()
        for _ in range(2):
            self.assertEqual(self.check(), ([], 2))


if __name__ == "__main__":
    unittest.main()
