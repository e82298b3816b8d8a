"""What scripts/lint.py finds: long functions, includes against the layers, words of before."""
import pathlib
import unittest

import pytest

import lint

pytestmark = pytest.mark.unit

BODY = "\n".join(["      y += 1;"] * lint.FUNCTION_LINES_MAX + [""])
CPP = f"""\
namespace a {{
class C {{
 public:
  int Inside(int x) const {{
{BODY}
  }}
  void OverLines(const T& first,
                 const T& second) noexcept {{
{BODY}
  }}
}};

C::C(int a)
    : a_(a) {{
{BODY}
}}

TEST(Suite, Name) {{
{BODY}
}}

const auto lambda = [&](int x) {{
{BODY}
}};
"""
PYTHON = "class C:\n    def f(self):\n" + "        x = 1\n" * (lint.FUNCTION_LINES_MAX + 1)


class LongFunctions(unittest.TestCase):
    def found(self, lines, problems):
        return [lines[int(problem.split(":")[1]) - 1].strip() for problem in problems]

    def test_of_classes_and_of_none(self):
        lines = CPP.splitlines()
        self.assertEqual(self.found(lines, lint.long_functions("x", lines)), [
            "int Inside(int x) const {", "const T& second) noexcept {", ": a_(a) {",
            "TEST(Suite, Name) {", "const auto lambda = [&](int x) {"])

    def test_not_tables_classes_or_what_is_just_short_enough(self):
        lines = (f"const int kTable[] = {{\n{BODY}\n}};\nstruct S {{\n{BODY}\n}};\n"
                 + CPP.replace("      y += 1;\n", "", 1)).splitlines()
        self.assertNotIn("int Inside(int x) const {", self.found(lines, lint.long_functions("x", lines)))
        self.assertNotIn("struct S {", self.found(lines, lint.long_functions("x", lines)))
        self.assertNotIn("const int kTable[] = {", self.found(lines, lint.long_functions("x", lines)))

    def test_of_python(self):
        (problem,) = lint.long_python_functions("x", PYTHON)
        self.assertIn("x:2: a function", problem)


class Folders(unittest.TestCase):
    def test_of_more_sources_than_may_be_are_found(self):
        sources = [pathlib.Path("src/a", f"{number}.cc") for number in range(lint.FOLDER_SOURCES_MAX)]
        self.assertEqual(lint.crowded_folders([*sources, pathlib.Path("src/a/0_test.cc"), pathlib.Path("src/b/0.cc")]), [])
        (problem,) = lint.crowded_folders([*sources, pathlib.Path("src/a/0.h")])
        self.assertEqual(problem, "src/a: 31 sources; 30 is the most")


class Layers(unittest.TestCase):
    """Who may include whom, at both levels."""

    def allowed(self, path, included):
        return lint.may_include(*lint.layer(path), *lint.layer(included))

    def test_a_component_includes_what_stands_before_it_and_no_other(self):
        self.assertTrue(self.allowed("agent/node/node.cc", "policy/memory/ledger.h"))
        self.assertTrue(self.allowed("cli/commands.cc", "agent/config/overcommit.h"))
        self.assertFalse(self.allowed("api/control.h", "agent/node/node.h"))
        self.assertFalse(self.allowed("client/memory/charge.cc", "base/result.h"), "it uses libc alone")
        self.assertFalse(self.allowed("policy/compute/gangs.h", "api/gang.h"))

    def test_a_folder_includes_what_stands_before_it_and_no_other(self):
        self.assertTrue(self.allowed("client/memory/charge.cc", "client/session/share.h"))
        self.assertFalse(self.allowed("client/session/share.h", "client/memory/charge.h"))
        self.assertFalse(self.allowed("client/compute/streams.h", "client/memory/charge.h"))
        self.assertFalse(self.allowed("client/memory/charge.h", "client/compute/streams.h"))
        self.assertFalse(self.allowed("agent/share/share.h", "agent/server/agent.h"))
        self.assertFalse(self.allowed("cli/top/top_view.h", "cli/commands.h"))
        self.assertTrue(self.allowed("cli/commands.cc", "cli/top/top_view.h"))

    def test_the_simulated_gpu_knows_nothing_of_the_product(self):
        core = lint.sim_may_include("sim/core/machine.h")
        self.assertTrue(core("base/result.h") and core("sim/core/model/model.h"))
        self.assertFalse(core("agent/node/node.h") or core("policy/memory/ledger.h") or core("sim/cuda/state.h"))
        self.assertTrue(lint.sim_may_include("sim/node/world.h")("agent/compute/device_leases.h"))


class Names(unittest.TestCase):
    def test_functions_of_a_source_for_itself(self):
        text = """namespace a {
int Seen(int x);
namespace {
using F = int(int);
std::map<int, int> First(const std::pair<int, int>& pair, int (*f)(int, int)) {
  return Inside(pair);
}
void None() {}
}  // namespace
}  // namespace a
"""
        self.assertEqual(list(lint.own_functions(text)), [("First", 2), ("None", 0)])

    def test_the_tree_has_no_two_of_one_folder(self):
        self.assertEqual(lint.check_names(), [])


class Words(unittest.TestCase):
    def test_words_that_the_glossary_replaced_are_found(self):
        for line in ("class Rampage {", "// It was called back.", "kMostNs", "void Complain(", '"why_slow"',
                     "// the zoo", "AFlagIsTold", "bool is_passed_over", "KeeperGone()", "// one story of it"):
            self.assertTrue(lint.BANNED_WORDS.search(line), line)

    def test_the_fields_words_and_plain_english_are_left_alone(self):
        for line in ("class Chaos {", "// It was revoked.", "kMaxNs", "cannot be told apart", "history",
                     "// room for more", "bookshop", "the market", "a beekeeper's"):
            self.assertFalse(lint.BANNED_WORDS.search(line), line)
