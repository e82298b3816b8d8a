"""The Helm chart, by Helm itself: what it makes of its values is what deploy/ has."""
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
import helm_chart

HELM = harness.BUILD / "kubernetes" / "bin" / "helm"
IMAGE = "registry.example/prorata:1"


def objects(text):
    """Of some manifests, in any order, without comments. Helm changes nothing else of a text."""
    parts = (re.sub(r"^\s*(#.*)?\n", "", part + "\n", flags=re.MULTILINE) for part in re.split(r"^---$", text, flags=re.MULTILINE))
    return sorted(part for part in parts if part)


def manifests(mode):
    """What deploy/ has, with the values that the tests give."""
    found = []
    for path in helm_chart.manifests(helm_chart.MODES[mode]) + helm_chart.manifests(helm_chart.BOTH):
        text = path.read_text().replace("image: prorata-kubernetes", f'image: "{IMAGE}"')
        text = text.replace("prorata-system", "gpus").replace("path: /run/prorata,", 'path: "/srv/agent",')
        found += objects(text)
    return sorted(found)


class HelmChart(unittest.TestCase):
    def setUp(self):
        if not HELM.exists():
            self.skipTest(f"NEEDS HELM: {HELM} is not built; `scripts/kubernetes_build.py build` builds it")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prorata-helm-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.chart = helm_chart.write(self.folder)

    def helm(self, *arguments):
        # Helm keeps folders of its own.
        places = {f"HELM_{name}_HOME": str(self.folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run([HELM, *arguments], env=places, capture_output=True, text=True, check=False,
                              timeout=harness.DEADLINE_S)
        return done.returncode, done.stdout, done.stderr

    def render(self, *values):
        options = [option for value in values for option in ("--set", value)]
        return self.helm("template", "prorata", self.chart, "--namespace", "gpus", "--kube-version", "1.36.3", *options)

    def test_it_is_what_deploy_has(self):
        for mode in helm_chart.MODES:
            status, out, err = self.render(f"mode={mode}", f"image={IMAGE}", "agentDir=/srv/agent")
            self.assertEqual(status, 0, err)
            self.assertEqual(objects(out), manifests(mode))

    def test_lint(self):
        status, out, err = self.helm("lint", self.chart, "--set", f"image={IMAGE}")
        self.assertEqual(status, 0, out + err)

    def test_bad_values_are_said(self):
        for values, says in (((), "give the image: --set image=..."),
                             ((f"image={IMAGE}", "mode=plugin"), "mode is 'plugin', and must be dra or resources")):
            status, _, err = self.render(*values)
            self.assertNotEqual(status, 0)
            self.assertIn(says, err)


if __name__ == "__main__":
    unittest.main()
