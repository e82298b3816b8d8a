"""What scripts/lint.py takes for a function that is too long."""
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
