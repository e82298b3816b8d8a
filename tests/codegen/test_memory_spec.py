"""The answers about memory are complete, and cannot name what is not there."""

import tempfile
import unittest
from pathlib import Path

import support
import gen_memory
from model import load
from overlay import SpecError


class MemorySpecTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cuda = load("cuda")
        cls.text = gen_memory.SPEC.read_text()
        cls.tests = gen_memory.tests_of(gen_memory.TESTS)

    def assert_refused(self, old, new, message):
        """An edit of the file must stop the generator."""
        edited = self.text.replace(old, new, 1)
        self.assertNotEqual(self.text, edited, "the edit found nothing to change")
        with self.assertRaisesRegex(SpecError, message):
            gen_memory.generate(self.cuda, edited, self.tests)

    def test_every_function_that_may_take_memory_is_in_the_document(self):
        document = (support.ROOT / "docs" / "reference" / "memory.md").read_text()
        for function in self.cuda.functions:
            if function.role in gen_memory.ROLES:
                self.assertIn(f"`{function.base}`", document)

    def test_every_pair_is_named_in_the_document(self):
        document = (support.ROOT / "docs" / "reference" / "memory.md").read_text()
        for answers in gen_memory.load_answers(self.text).values():
            for answer in answers:
                for function in answer.functions:
                    for test in answer.pair(function):
                        self.assertIn(test, document)

    def test_a_function_without_an_answer(self):
        self.assert_refused('"cuMemCreate"', '"cuMemMap"', r"cuMemCreate \(alloc\) has no answer")

    def test_two_answers(self):
        self.assert_refused('"cuMemCreate"', '"cuMemCreate", "cuMemRelease"',
                            "cuMemRelease has two answers")

    def test_an_answer_for_no_function(self):
        self.assert_refused('"cuMemCreate"', '"cuMemCreate_v9"', "cuMemCreate_v9 is not a base")

    def test_an_answer_that_is_none(self):
        self.assert_refused('answer = "charged"', 'answer = "cheap"', "cheap is not an answer")
        self.assert_refused('answer = "charged"', 'anwser = "charged"', "anwser is not a key")

    def test_a_test_that_is_none(self):
        self.assert_refused('"ContextLimits.{}Refused"', '"ContextLimits.{}Denied"',
                            "tests/limits has no test ContextLimits.CtxCreateDenied")

    def test_a_charge_without_a_pair(self):
        self.assert_refused('limit = "ContextLimits.{}Refused"\n', "", "needs a pair of tests")

    def test_tests_are_found_in_sources(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a_test.cc").write_text(
                "TEST_F(A, B) {}\nTEST(C,\n     D) {}\n// TEST\nNOT_A(TE, ST)\n")
            self.assertEqual(gen_memory.tests_of(folder), {"A.B", "C.D"})


if __name__ == "__main__":
    unittest.main()
