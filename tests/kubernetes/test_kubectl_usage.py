"""What `kubectl prorata` says of a command line that it does not understand: needs no cluster."""
import subprocess
import unittest

import harness

KUBECTL = harness.BUILD / "bin" / "kubectl-prorata"


@unittest.skipUnless(KUBECTL.exists(), "kubectl-prorata was not built: `make kubernetes`")
class Usage(unittest.TestCase):
    def test_one_line_says_what_is_wrong_and_where_to_look(self):
        see = "see `kubectl prorata --help`\n"
        for words, said in (
                ([], "kubectl prorata: no command; they are ps, top, why; " + see),
                (["foo"], "kubectl prorata: 'foo' is not a command; they are ps, top, why; " + see),
                (["-n", "x", "foo"], "kubectl prorata: 'foo' is not a command; they are ps, top, why; " + see),
                (["ps", "foo"], "kubectl prorata ps: "),
                (["why"], "kubectl prorata why: the name of a pod is missing; see `kubectl prorata why --help`\n"),
                (["top", "--seconds", "0"], "kubectl prorata top: --seconds: ")):
            with self.subTest(words):
                done = subprocess.run([KUBECTL, *words], capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertTrue(done.stderr.startswith(said), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)

    def test_help_is_no_mistake(self):
        done = subprocess.run([KUBECTL, "ps", "--help"], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("--all-namespaces", done.stdout)


if __name__ == "__main__":
    unittest.main()
