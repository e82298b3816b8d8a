"""The demo itself: what it prints, its exit status, and that nothing of it stays."""
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import pytest

import harness
import quiet

pytestmark = [pytest.mark.alone, pytest.mark.gpu]


def prorata_processes():
    found = set()
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                executable = os.readlink(folder / "exe")
            except OSError:
                continue
            if executable in (str(harness.PRORATA), str(harness.GPULOAD)):
                found.add(int(folder.name))
    return found


class Demo(unittest.TestCase):
    def setUp(self):
        self.before = prorata_processes()

    def start(self, seconds):
        return subprocess.Popen(
            [sys.executable, harness.ROOT / "scripts" / "demo.py", "--seconds", str(seconds),
             "--build", harness.BUILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def check_nothing_stays(self):
        harness.wait_until(lambda: prorata_processes() <= self.before, what="the end of all")

    def test_each_gets_its_part(self):
        with quiet.Watch() as watch:
            process = self.start(8)
            out, err = process.communicate(timeout=harness.DEADLINE_S)
        print(out)
        # Three points in 8 s of real time: noise can cost that, and nothing else may fail.
        self.assertIn(process.returncode, (0, 1), out + err)
        self.assertIn("the largest difference is", out, err)
        watch.judge(self, process.returncode == 0, out.splitlines()[-1])
        if not pathlib.Path("/dev/nvidiactl").exists():
            self.assertEqual(out.splitlines()[0], "simulated GPU (no NVIDIA driver found)")
        self.assertIn("PASSED", out)
        self.check_nothing_stays()

    def test_interrupt_cleans_up(self):
        process = self.start(600)
        while "gets" not in process.stdout.readline():
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=harness.DEADLINE_S)
        self.assertEqual(process.returncode, 130, out + err)
        self.check_nothing_stays()


if __name__ == "__main__":
    unittest.main()
