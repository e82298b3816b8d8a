"""What `make package` makes: whole, with what it needs, and runs from where it is unpacked."""
import json
import pathlib
import shutil
import subprocess
import unittest

import harness
import packages
from harness import GIB

UNIT = harness.ROOT / "deploy" / "debian" / "prorata.service"


class Packages(harness.MachineTestCase):
    def setUp(self):
        if reason := packages.why_not():
            self.skipTest("NEEDS PACKAGING: " + reason)
        super().setUp()
        self.tree = packages.unpacked("prorata", self.machine.folder / "tree")

    def test_what_is_in_it(self):
        files = {str(path.relative_to(self.tree)) for path in self.tree.glob("**/*") if not path.is_dir()}
        names = ("bin/prorata", "lib/prorata/libcuda.so.1", "lib/prorata/libnvidia-ml.so.1",
                 "lib/systemd/system/prorata.service", "share/doc/prorata/copyright")
        self.assertEqual(files, {f"usr/{name}" for name in names})
        version = (harness.ROOT / "VERSION").read_text().strip()
        self.assertEqual(packages.field("prorata", "Version"), version)
        self.assertEqual(packages.field("prorata", "Architecture"), "amd64")
        depends = packages.field("prorata", "Depends")
        self.assertRegex(depends, r"\blibc6 \(>=")
        self.assertNotIn("libcuda", depends, "what stands in the driver's place, and the driver, are no packages")

    def test_a_program_runs_on_a_share_of_it(self):
        program = self.tree / "usr/bin/prorata"
        # Nothing of the build but the simulated driver.
        status, out, err = self.machine.call(
            [program, "run", "--memory", "1GiB", "--", harness.GPULOAD, "--allocate", "128MiB", "--until-refused"])
        self.assertEqual(status, 0, err)
        seen = json.loads(out.splitlines()[-1])
        self.assertEqual(seen["memory"]["device_total"], GIB)

    def test_the_service(self):
        text = (self.tree / "usr/lib/systemd/system/prorata.service").read_text()
        self.assertEqual(text, UNIT.read_text())
        self.assertIn("ExecStart=/usr/bin/prorata agent\n", text)
        if shutil.which("systemd-analyze") is None:
            self.skipTest("NEEDS SYSTEMD: systemd-analyze is not installed")
        # The program must be there: this tree's.
        own = self.machine.folder / "prorata.service"
        own.write_text(text.replace("/usr/bin/prorata", str(self.tree / "usr/bin/prorata")))
        done = subprocess.run(["systemd-analyze", "verify", own], capture_output=True, text=True, check=False)
        self.assertEqual([line for line in done.stderr.splitlines() if "prorata" in line], [])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_maintainers_scripts_without_systemd(self):
        """As where an image is built. The helper that enables services would do so on this machine: another
        of its name notes what it was asked."""
        control, notes = self.machine.folder / "control", self.machine.folder / "notes"
        subprocess.run(["dpkg-deb", "-e", packages.made()["prorata"], control], check=True)
        if pathlib.Path("/run/systemd/system").exists():
            self.skipTest("NEEDS NO SYSTEMD: the scripts would act on this machine")
        tools = self.machine.folder / "tools"
        tools.mkdir()

        def run(script, *arguments):
            self.assertTrue((control / script).stat().st_mode & 0o111, script)
            subprocess.run(["/bin/sh", control / script, *arguments], check=True, env={"PATH": str(tools)})

        run("postinst", "configure", "")
        self.assertFalse(notes.exists(), "no helper: nothing to enable")
        helper = tools / "deb-systemd-helper"
        helper.write_text(f'#!/bin/sh\necho "$*" >>{notes}\n')
        helper.chmod(0o755)
        run("postinst", "configure", "")
        self.assertIn("enable prorata.service", notes.read_text())
        run("prerm", "upgrade", "0.2.0")
        run("prerm", "remove")
        run("postrm", "remove")
        self.assertNotIn("purge", notes.read_text())
        run("postrm", "purge")
        self.assertIn("purge prorata.service", notes.read_text())


if __name__ == "__main__":
    unittest.main()
