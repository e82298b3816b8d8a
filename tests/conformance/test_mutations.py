"""Every test of the conformance suite states a rule, and notices when it is broken on purpose."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("PRORATA_BUILD_DIR", ROOT / "build")).resolve()
sys.path.insert(0, str(ROOT / "scripts"))
import conformance  # pylint: disable=wrong-import-position

# A test takes some ten milliseconds; a broken rule that makes it hang is known after this.
HANG_S = 5
FAILURES = {"FAILED", "hung", "crashed"}
HERE = pathlib.Path(__file__).resolve().parent
CUDA = BUILD / "venv-cuda13"


class Lists(unittest.TestCase):
    def test_every_test_states_its_rule_and_its_source(self):
        stated = {rule["test"]: rule for rule in conformance.rules(BUILD)}
        self.assertEqual(sorted(stated), sorted(conformance.tests(BUILD)),
                         "left: RULE_TESTs; right: all tests. Make every test a RULE_TEST")
        for test, rule in stated.items():
            with self.subTest(test):
                self.assertGreater(len(rule["rule"]), 20)
                self.assertRegex(rule["source"], r"^[A-Za-z].{10,}")

    def test_there_are_as_many_as_were_promised(self):
        self.assertGreaterEqual(len(conformance.rules(BUILD)), 200)
        self.assertGreaterEqual(len(conformance.all_mutations()), 30)

    def test_every_breakable_rule_is_in_the_list(self):
        self.assertEqual(sorted(conformance.breakable_rules()), sorted(conformance.all_mutations()))

    def test_every_named_test_exists(self):
        known = set(conformance.tests(BUILD))
        for rule, entry in conformance.all_mutations().items():
            with self.subTest(rule):
                self.assertTrue(entry["tests"])
                self.assertFalse(set(entry["tests"]) - known)
                self.assertGreater(len(entry["without"]), 20)

    def test_the_document_is_what_they_say(self):
        self.assertEqual(conformance.DOCUMENT.read_text(encoding="utf-8"), conformance.document(BUILD),
                         "run scripts/conformance.py")


class Mutations(unittest.TestCase):
    def test_named_tests_pass_when_no_rule_is_broken(self):
        named = {test for entry in conformance.all_mutations().values() for test in entry["tests"]}
        found = conformance.run_broken(BUILD, sorted(named), [])
        bad = {test: found[test] for test in found if found[test][0] != "OK"}
        self.assertEqual(bad, {})
        self.assertEqual(set(found), named)

    def test_each_fails_when_its_rule_is_broken(self):
        pairs = [(rule, test) for rule, entry in conformance.all_mutations().items()
                 for test in entry["tests"]]

        def verdict(pair):
            rule, test = pair
            return conformance.run_broken(BUILD, [test], [rule], HANG_S)[test]

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for (rule, test), (found, lines) in zip(pairs, pool.map(verdict, pairs), strict=True):
                print(f"{rule}: {test}: {found}")
                with self.subTest(rule=rule, test=test):
                    self.assertIn(found, FAILURES, "the rule is broken and the test does not notice\n"
                                  + "\n".join(lines[-20:]))

    def test_an_unknown_rule_is_refused(self):
        # Else a misspelled one would break nothing, and every test of it would be found wanting.
        found = conformance.run_broken(BUILD, ["StreamTest.OneStreamRunsInOrder"], ["no-such-rule"])
        self.assertEqual([verdict for verdict, _ in found.values()], ["FAILED"])


class Hanging(unittest.TestCase):
    """A test that hangs is ended after a moment of silence; a process that is slow to begin has longer."""

    def verdict(self, script):
        with tempfile.TemporaryDirectory(prefix="prorata-conformance-") as folder:
            suite = conformance.program(pathlib.Path(folder))
            suite.parent.mkdir(parents=True)
            suite.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            suite.chmod(0o755)
            return conformance.run(pathlib.Path(folder), ["A.B"], limit_s=0.3)["A.B"][0]

    def test_before_the_test_begins(self):
        self.assertEqual(self.verdict("sleep 1; echo '[ RUN      ] A.B'; echo '[       OK ] A.B (1 ms)'"), "OK")

    def test_after_it_began(self):
        self.assertEqual(self.verdict("echo '[ RUN      ] A.B'; sleep 60; echo '[       OK ] A.B (1 ms)'"), "hung")


class Order(unittest.TestCase):
    def test_tests_do_not_depend_on_their_order(self):
        for seed in (7, 4711):
            with self.subTest(seed=seed):
                found = conformance.run(BUILD, conformance.tests(BUILD),
                                        options=["--gtest_shuffle", f"--gtest_random_seed={seed}"])
                bad = {test: found[test] for test in found if found[test][0] not in ("OK", "SKIPPED")}
                self.assertEqual(bad, {})


class RealGpu(unittest.TestCase):
    """What a GPU is judged with, as far as it can be seen without one."""

    def test_its_kernels_are_those_of_the_simulated_gpu(self):
        host = (HERE / "host_kernels.c").read_text(encoding="utf-8")
        sizes = {name: [int(size) for size in values.split(",")][:-1] for name, values in
                 re.findall(r"(\w+)__param_sizes\[\] = \{([^}]*)\}", host)}
        ptx = (HERE / "conformance_kernels.ptx").read_text(encoding="utf-8")
        found = {}
        for name, parameters in re.findall(r"\.visible \.entry (\w+)\((.*?)\)", ptx, re.S):
            found[name] = [int(count or 1) * int(bits) // 8 for bits, count in re.findall(
                r"\.param (?:\.align \d+ )?\.[bu](\d+) \w+(?:\[(\d+)\])?", parameters)]
        self.assertEqual(found, sizes)

    def test_its_kernels_assemble(self):
        ptxas = next(CUDA.glob("lib/python3*/site-packages/nvidia/cu13/bin/ptxas"), None)
        if ptxas is None:
            self.skipTest(f"no ptxas in {CUDA} (scripts/setup.sh cuda-venv)")
        with tempfile.TemporaryDirectory(prefix="prorata-ptx-") as folder:
            for target in ("sm_75", "sm_90"):
                done = subprocess.run([ptxas, f"-arch={target}", "-o", pathlib.Path(folder, target),
                                       BUILD / "tests" / "conformance_kernels.ptx"],
                                      capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_differences_are_named_with_their_rules(self):
        # A simulated GPU that breaks a rule stands in for a GPU that does not hold it.
        with tempfile.TemporaryDirectory(prefix="prorata-conformance-") as folder:
            machine = pathlib.Path(folder) / "machine.toml"
            machine.write_text('broken_rules = ["unrecorded-is-complete"]\n', encoding="utf-8")
            result = conformance.differences(BUILD, {"PRORATA_SIM_MACHINE": str(machine)})
        names = [difference["test"] for difference in result["differences"]]
        self.assertIn("EventTest.ANeverRecordedEventIsComplete", names)
        first = result["differences"][names.index("EventTest.ANeverRecordedEventIsComplete")]
        self.assertIn("cuEventRecord", first["source"])
        self.assertIn("EventTest.QuerySaysNotReadyWhileWorkIsPending", result["held"])


if __name__ == "__main__":
    unittest.main()
