"""The answers about NVML are complete, and cannot contradict what is overridden."""

import unittest

import support
import gen_nvml_answers
from model import load
from overlay import SpecError


class NvmlAnswersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.nvml = load("nvml")
        cls.text = gen_nvml_answers.SPEC.read_text()

    def assert_refused(self, old, new, message):
        edited = self.text.replace(old, new, 1)
        self.assertNotEqual(self.text, edited, "the edit found nothing to change")
        with self.assertRaisesRegex(SpecError, message):
            gen_nvml_answers.generate(self.nvml, edited)

    def test_every_function_is_in_the_document(self):
        document = (support.ROOT / "docs" / "reference" / "nvml.md").read_text()
        for function in self.nvml.functions:
            self.assertIn(f"`{function.base}`", document)

    def test_a_function_without_an_answer(self):
        self.assert_refused('"nvmlDeviceGetName",', "", "nvmlDeviceGetName has no answer")

    def test_two_answers(self):
        self.assert_refused('"nvmlDeviceGetName"', '"nvmlDeviceGetName", "nvmlDeviceGetBrand"',
                            "nvmlDeviceGetBrand has two answers")

    def test_an_answer_for_no_function(self):
        self.assert_refused('"nvmlDeviceGetName"', '"nvmlDeviceGetNames"', "is not a base function")

    def test_an_answer_that_is_none(self):
        self.assert_refused('answer = "hidden"', 'answer = "secret"', "secret is not an answer")
        self.assert_refused('answer = "hidden"', 'anwser = "hidden"', "answer")

    def test_answers_and_overrides_agree(self):
        self.assert_refused('answer = "share"', 'answer = "device"', "is overridden")
        self.assert_refused('answer = "hidden"', 'answer = "share"', "is not overridden")

    def test_what_tells_of_processes_never_passes(self):
        """By its arguments: a function that fills in pids is the share's, or hidden."""
        known = {n: e["answer"] for s in gen_nvml_answers.load_answers(self.nvml).values()
                 for e in s for n in e["functions"]}
        for function in self.nvml.functions:
            types = " ".join(p.type for p in function.params)
            if any(word in types for word in ("nvmlProcess", "SessionInfo", "AccountingStats")):
                self.assertIn(known[function.base], ("share", "hidden"), function.symbol)


if __name__ == "__main__":
    unittest.main()
