"""The check of the documents finds each kind of mistake, and leaves right pages alone."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import lint  # pylint: disable=wrong-import-position

PAGES = {
    "README.md": "# it\n\n[docs](docs/README.md)\n",
    "docs/README.md": "# Index\n\n[a guide](guide/a.md#how-to-start) [m](reference/metrics.md) [e](reference/events.md) [t](design/trust.md)\n",
    "docs/guide/a.md": "# A\n\n```\n# no heading, [no link](nowhere.md)\n```\n\n## How to start\n\n[up](../README.md) [out](https://a.b/c)\n",
    "docs/reference/metrics.md": "`prorata_share_weight`\n",
    "docs/reference/events.md": "`agent_started`\n",
    "docs/design/trust.md": "`used_bytes`, `Join`\n",
    "src/agent/server/metrics.cc": '{"prorata_share_weight", 1}\n',
    "src/api/event.cc": '{EventKind::kAgentStarted, "agent_started"},\n',
    "src/shm/usage_file.h": "  std::atomic<uint64_t> used_bytes;\n",
    "src/wire/messages.h": "  kJoin = 1,    // member -> agent, once\n  kWelcome = 2,  // agent -> member\n",
}


class DocsCheck(unittest.TestCase):
    def check(self, **changes):
        """What is found once pages are as `changes` has them (None: not there)."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            subprocess.run(["git", "init", "-q", root], check=True)
            for name, text in {**PAGES, **changes.get("pages", {})}.items():
                if text is not None:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_text(text, encoding="utf-8")
            return [problem.replace(f"{root}/", "") for problem in lint.check_docs(root)]

    def assert_found(self, words, pages):
        found = self.check(pages=pages)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_right_pages(self):
        self.assertEqual(self.check(), [])

    def test_a_link_to_nothing(self):
        self.assert_found("docs/guide/a.md:3: a link to docs/guide/b.md, which does not exist",
                          {"docs/guide/a.md": "# A\n## How to start\n[b](b.md)\n"})

    def test_a_link_to_no_heading(self):
        self.assert_found("a.md has no heading #how-to-start", {"docs/guide/a.md": "# A\n\n## How to end\n"})

    def test_a_page_that_a_message_names(self):
        self.assert_found("src/cli/help.cc:1: names docs/TOP.md, which does not exist",
                          {"src/cli/help.cc": '"... docs/TOP.md" "docs/guide/a.md"\n'})

    def test_a_page_that_nothing_leads_to(self):
        self.assert_found("docs/guide/b.md: no link leads to it", {"docs/guide/b.md": "# B\n"})

    def test_a_long_readme(self):
        self.assert_found("README.md: 153 lines", {"README.md": PAGES["README.md"] + "line\n" * 150})

    def test_names_that_a_reference_lacks(self):
        self.assert_found("metrics.md does not name prorata_share_weight", {"docs/reference/metrics.md": "# M\n"})
        self.assert_found("events.md does not name agent_started", {"docs/reference/events.md": "# E\n"})

    def test_words_and_messages_that_a_member_writes(self):
        self.assert_found("trust.md does not name used_bytes", {"docs/design/trust.md": "`Join`\n"})
        self.assert_found("trust.md does not name Join", {"docs/design/trust.md": "`used_bytes`\n"})

    def test_a_source_that_has_moved(self):
        self.assert_found("metrics.cc: no names found there", {"src/agent/server/metrics.cc": None})


if __name__ == "__main__":
    unittest.main()
