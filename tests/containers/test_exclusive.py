"""`prorata create --mode exclusive`: whole GPUs for containers with the plain driver, and nobody else."""
import json
import pathlib
import signal
import unittest

import harness
import podman
import test_held_shares
from harness import GIB

CONTEXT = 512 << 20
TWO_GPUS = "[[devices]]\nmemory = \"16GiB\"\n[[devices]]\nmemory = \"16GiB\"\n"


class Alone(test_held_shares.HeldTestCase):
    MACHINE_TOML = TWO_GPUS

    def setUp(self):
        super().setUp()
        self.start_agent()

    def test_nobody_else_is_on_its_gpu(self):
        self.good("create", "a", "--memory", "1GiB", "--gpu", "0")
        message = self.refused("create", "whole", "--mode", "exclusive", "--gpu", "0")
        self.assertIn("needs it alone (--mode exclusive), but 1 share is there", message)
        # The agent chooses one that is free.
        self.assertEqual(self.good("create", "whole", "--mode", "exclusive"),
                         "prorata.dev/share=whole\n")
        self.assertEqual(self.machine.share("whole")["index"], 1)
        self.assertEqual(self.machine.gpus()[1]["exclusive"], "whole")
        message = self.refused("create", "b", "--memory", "1GiB", "--gpu", "1")
        self.assertIn("is all of share 'whole' (--mode exclusive)", message)
        self.assertIn("GPU 1", self.refused("run", "--gpu", "1", "--", "true"))
        self.good("create", "b", "--memory", "1GiB")
        self.assertEqual(self.machine.share("b")["index"], 0)
        self.assertIn("needs it alone", self.refused("create", "more", "--mode", "exclusive"))
        self.good("rm", "whole")
        self.good("create", "c", "--memory", "1GiB", "--gpu", "1")

    def test_it_is_shown_and_cannot_be_changed_or_joined(self):
        self.good("create", "whole", "--mode", "exclusive", "--gpu", "0,1")
        self.assertRegex(self.good("ps"), r"(?m)^whole +0 +exclusive +all ")
        self.assertIn("exclusive: whole GPUs, with the plain driver", self.good("inspect", "whole"))
        self.assertEqual(self.machine.share("whole")["mode"], "exclusive")
        for change in (["--memory", "1GiB"], ["--compute", "0.5"], ["--allow-users", "all"]):
            message = self.refused("update", "whole", *change)
            self.assertIn("share 'whole' is whole GPUs with the plain driver", message)
        self.assertIn("for containers", self.refused("run", "--name", "whole", "--", "true"))
        for more in (["--memory", "1GiB"], ["--compute-limit", "0.5"], ["--any-container"]):
            self.assertIn("leave those options out",
                          self.refused("create", "x", "--mode", "exclusive", *more))

    def test_the_specification_has_the_driver_and_nothing_of_prorata(self):
        self.good("create", "whole", "--mode", "exclusive", "--gpu", "1")
        edits = json.loads(self.good("cdi", "whole"))["devices"][0]["containerEdits"]
        mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
        for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
            for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"):
                self.assertEqual(pathlib.Path(mounts[f"{folder}/{name}"]).parent, harness.SIM_DIR)
        self.assertFalse([path for path in mounts if "prorata" in path], mounts)
        self.assertFalse([path for path in mounts.values() if str(harness.LIB_DIR) + "/" in path])
        uuid = self.machine.gpus()[1]["uuid"]
        self.assertIn(f"CUDA_VISIBLE_DEVICES={uuid}", edits["env"])

    def check_still_alone(self):
        self.assertEqual(self.machine.share("whole")["mode"], "exclusive")
        self.assertIn("is all of share 'whole'",
                      self.refused("create", "b", "--memory", "1GiB", "--gpu", "0"))
        mounts = json.loads(self.good("cdi", "whole"))["devices"][0]["containerEdits"]["mounts"]
        self.assertFalse([m for m in mounts if "prorata" in m["containerPath"]])

    def test_it_survives_the_agent(self):
        self.good("create", "whole", "--mode", "exclusive", "--gpu", "0")
        for by in (signal.SIGKILL, signal.SIGTERM):
            self.machine._agent.send_signal(by)
            self.machine._agent.wait()
            self.start_agent()
            self.check_still_alone()
        # A state that is damaged: what the share is stands in its folder, too.
        self.machine.kill_agent()
        (self.machine.runtime_dir / "state.json").write_text("{")
        self.start_agent()
        self.check_still_alone()
        self.good("rm", "whole")
        self.assertEqual(self.left(), [])

    def test_it_waits_for_an_empty_gpu_and_others_for_it(self):
        for gpu in "01":
            self.good("create", f"a{gpu}", "--memory", "1GiB", "--gpu", gpu)
        create = [harness.PRORATA, "create"]
        whole = self.machine.start([*create, "whole", "--mode", "exclusive", "--wait", "--gpu", "0"])

        def waiting():
            return len(json.loads(self.good("ps", "--waiting", "--json")))
        harness.wait_until(lambda: waiting() == 1, what="the wait of the whole GPU")
        # Another share on it would keep it from ever being free.
        self.assertIn("share 'whole' stands in front of it in line",
                      self.refused("create", "b", "--memory", "1GiB", "--gpu", "0"))
        self.good("rm", "a0")
        self.assertEqual(whole.wait(harness.DEADLINE_S), 0)
        later = self.machine.start([*create, "later", "--memory", "1GiB", "--wait", "--gpu", "0"])
        harness.wait_until(lambda: waiting() == 1, what="the wait of the later one")
        self.good("rm", "whole")
        self.assertEqual(later.wait(harness.DEADLINE_S), 0)


class InPodman(podman.PodmanTestCase):
    def test_a_container_has_the_whole_gpu_and_the_plain_driver(self):
        share = self.create("whole", "--mode", "exclusive", "--gpu", "0")
        report = self.podman.run_json(self.named("box"), share,
                                      ["--allocate", "512MiB", "--until-refused"])
        self.assertEqual(report["allocated_bytes"], 16 * GIB - CONTEXT)
        status, out, _ = self.podman.run(self.named("look"), share, ["ls", "/run"])
        self.assertEqual(status, 0)
        self.assertNotIn("prorata", out)
        # What it does is seen, but not counted against a share.
        self.assertEqual(self.machine.share(share)["used_bytes"], 0)
        self.restart_agent()
        report = self.podman.run_json(self.named("again"), share, ["--allocate", "1GiB"])
        self.assertEqual(report["allocated_bytes"], GIB)
        _, _, err = self.prorata("run", "--memory", "1GiB", "--", "true")
        self.assertIn(f"is all of share '{share}'", err)


if __name__ == "__main__":
    unittest.main()
