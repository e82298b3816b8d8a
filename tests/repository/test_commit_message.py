"""The hook that checks commit messages, with git itself."""
import pathlib
import subprocess
import tempfile
import unittest

HOOKS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "hooks"
WHY = "\n\nWithout it the second of two programs never ends.\n"


class CommitMessage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.git("init", "-q")
        for name, value in (("user.name", "a"), ("user.email", "a@localhost"),
                            ("core.hooksPath", HOOKS)):
            self.git("config", name, value)

    def git(self, *arguments):
        return subprocess.run(["git", "-C", self.folder, *map(str, arguments)], text=True,
                              capture_output=True, check=False)

    def commit(self, message):
        return self.git("commit", "--allow-empty", "-m", message)

    def test_takes_a_subject_and_a_reason(self):
        self.assertEqual(self.commit("s" * 72 + WHY).returncode, 0)

    def test_takes_what_git_writes(self):
        self.assertEqual(self.commit("one" + WHY).returncode, 0)
        self.git("checkout", "-q", "-b", "other")
        self.commit("two" + WHY)
        self.git("checkout", "-q", "-")
        merged = self.git("merge", "--no-ff", "--no-edit", "other")
        self.assertEqual(merged.returncode, 0, merged.stderr)
        reverted = self.git("revert", "--no-edit", "HEAD^2")
        self.assertNotIn("commit-msg:", reverted.stderr)

    def test_refuses(self):
        for message, what in (("s" * 73 + WHY, "73 characters"), ("no reason", "no body"),
                              ("subject\ngoes on\n", "second line"),
                              ("subject\n\nSigned-off-by: a\n", "no body")):
            with self.subTest(message=message):
                done = self.commit(message)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(what, done.stderr)
                self.assertIn("git commit -e -F", done.stderr)
        self.assertNotEqual(self.git("log").returncode, 0, "nothing was committed")


if __name__ == "__main__":
    unittest.main()
