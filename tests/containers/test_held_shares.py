"""Shares of `prorata create`: there with programs or without, through the agent's death, and devices
of the Container Device Interface."""
import concurrent.futures
import json
import os
import pathlib
import subprocess
import unittest

import harness
from harness import GIB

CONTEXT = 512 << 20


class HeldTestCase(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        self.cdi = self.machine.folder / "cdi"

    def start_agent(self):
        return self.machine.start_agent("--cdi-dir", self.cdi)

    def prorata(self, *arguments):
        return self.machine.call([harness.PRORATA, *arguments])

    def good(self, *arguments):
        status, out, err = self.prorata(*arguments)
        self.assertEqual(status, 0, err)
        return out

    def refused(self, *arguments):
        """The one line that says why."""
        status, out, err = self.prorata(*arguments)
        self.assertEqual((status, out), (1, ""), err)
        self.assertEqual(err.count("\n"), 1, err)
        return err

    def specification(self, name):
        return self.cdi / f"prorata.dev-share-{name}.json"

    def left(self):
        """What there is of shares on the disk."""
        shares = self.machine.runtime_dir / "shares"
        return sorted(path.name for folder in (shares, self.cdi) if folder.exists()
                      for path in folder.iterdir())


class Life(HeldTestCase):
    def test_from_create_to_rm(self):
        self.start_agent()
        self.assertEqual(self.good("create", "train", "--memory", "2GiB", "--compute", "0.3"),
                         "prorata.dev/share=train\n")
        share = self.machine.share("train")
        self.assertEqual((share["memory_limit_bytes"], share["compute_request"], share["kept_by"],
                          share["members"]), (2 * GIB, 0.3, {"kind": "hold"}, []))
        # Programs of the machine join it by its name, one after another.
        for _ in range(2):
            report = self.machine.run_json(["--name", "train"],
                                           ["--allocate", "128MiB", "--until-refused"])
            self.assertEqual(report["allocated_bytes"], 2 * GIB - CONTEXT)
        self.good("update", "train", "--memory", "3GiB")
        inspected = json.loads(self.good("inspect", "train", "--json"))
        self.assertEqual(inspected["devices"][0]["memory_limit_bytes"], 3 * GIB)
        self.assertEqual(inspected["cdi"], json.loads(self.specification("train").read_text()))
        self.assertIn("prorata.dev/share=train", self.good("inspect", "train"))
        self.good("rm", "train")
        self.assertIsNone(self.machine.share("train"))
        self.assertEqual(self.left(), [])

    def test_the_specification_is_whole(self):
        self.start_agent()
        self.good("create", "train", "--memory", "2GiB")
        specification = json.loads(self.good("cdi", "train"))
        self.assertEqual((specification["cdiVersion"], specification["kind"]),
                         ("0.5.0", "prorata.dev/share"))
        edits = specification["devices"][0]["containerEdits"]
        self.assertEqual(edits["env"], ["NVIDIA_VISIBLE_DEVICES=void"])
        mounts = {mount["containerPath"]: mount for mount in edits["mounts"]}
        for mount in mounts.values():
            self.assertTrue(pathlib.Path(mount["hostPath"]).exists(), mount)
            writable = mount["containerPath"] == "/run/prorata/driver/state"
            self.assertEqual("rw" in mount["options"], writable, mount)
        for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu"):
            for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so", "libnvidia-ml.so.1"):
                host = mounts[f"{folder}/{name}"]["hostPath"]
                self.assertEqual(pathlib.Path(host).parent.resolve(), harness.LIB_DIR)
        # Nothing on the private path has a name that the loader is asked for.
        private = [path for path in mounts if path.startswith("/run/prorata/driver/")]
        self.assertEqual(sorted(pathlib.Path(path).name for path in private),
                         ["libcuda.so.real", "libnvidia-ml.so.real", "machine.toml", "state"])
        arguments = self.good("cdi", "--ctr", "train").splitlines()
        self.assertEqual(arguments.count("--mount"), len(mounts))
        self.assertEqual(self.specification("train").stat().st_mode & 0o777, 0o644)

    def test_shares_and_specifications_survive_the_agent(self):
        self.start_agent()
        for name in ("a", "b", "c"):
            self.good("create", name, "--memory", "1GiB", "--compute-limit", "0.5")
        before = self.machine.promises()
        load = self.machine.start_load(["--name", "a"],
                                       ["--allocate", "128MiB", "--announce", "--hold", "600"])
        harness.read_event(load, "allocated")
        self.machine.kill_agent()
        # What an agent leaves that was killed at the worst moments.
        self.specification("b").unlink()
        stale = self.cdi / "prorata.dev-share-gone.json"
        stale.write_text(self.specification("a").read_text().replace('"a"', '"gone"'))
        unfinished = self.cdi / "prorata.dev-share-c.json.new"
        unfinished.write_text("{")
        os.utime(unfinished, (0, 0))  # one that is new may be another agent's, which writes it just now
        others = self.cdi / "prorata.dev-share-other.json"
        others.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": "prorata.dev/share", "devices": [
            {"name": "other", "containerEdits": {"mounts": [
                {"hostPath": "/elsewhere/shares/other", "containerPath": "/run/prorata/share"}]}}]}))
        self.start_agent()
        self.assertEqual(self.machine.promises(), before)
        self.assertEqual(sorted(path.name for path in self.cdi.iterdir()),
                         [f"prorata.dev-share-{name}.json" for name in ("a", "b", "c", "other")])
        harness.wait_until(lambda: len(self.machine.share("a")["members"]) == 1,
                           what="the member's return")
        load.kill()
        load.communicate()
        harness.wait_until(lambda: self.machine.share("a")["used_bytes"] == 0,
                           what="the memory's return")
        self.assertIn("of another agent", self.refused("create", "other", "--memory", "1GiB"))
        for name in ("a", "b", "c"):
            self.good("rm", name)
        self.assertEqual(self.left(), ["prorata.dev-share-other.json"])

    def test_an_agent_that_was_started_for_it_stays_for_it(self):
        self.good("create", "train", "--memory", "1GiB")
        self.addCleanup(pathlib.Path("/var/run/cdi/prorata.dev-share-train.json").unlink,
                        missing_ok=True)
        self.assertEqual(len(self.machine.agent_pids()), 1)
        self.machine.run_json(["--name", "train"], ["--allocate", "1MiB"])
        self.good("rm", "train")
        harness.wait_until(lambda: not self.machine.agent_pids(), what="the agent's end")


class BadInput(HeldTestCase):
    def test_one_clear_sentence_and_nothing_half_made(self):
        self.start_agent()
        for name in ("a/b", ".a", "a-", "_a"):
            message = self.refused("create", name, "--memory", "1GiB")
            self.assertIn("cannot be the name of a share for containers", message)
        for name in ("a b", "-a", "ä", "", "x" * 64):
            status, out, err = self.prorata("create", "--memory", "1GiB", "--", name)
            self.assertNotEqual(status, 0)
            self.assertEqual((out, err.count("\n")), ("", 1), err)
        self.assertIn("no share named 'gone'", self.refused("rm", "gone"))
        self.assertIn("no share named 'gone'", self.refused("inspect", "gone"))
        self.assertIn("no share named 'gone'", self.refused("cdi", "gone"))
        self.assertIn("no share named 'gone'", self.refused("update", "gone", "--memory", "1GiB"))
        self.assertIn("17 GiB", self.refused("create", "big", "--memory", "17GiB"))
        self.assertIn("no GPU '7'", self.refused("create", "other", "--gpu", "7"))
        self.good("create", "there", "--memory", "1GiB")
        self.assertIn("'there'", self.refused("create", "there", "--memory", "1GiB"))
        self.assertIn("give `prorata run` nothing but its --name",
                      self.refused("run", "--name", "there", "--memory", "1GiB", "--", "true"))
        load = self.machine.start_load(["--name", "run"], ["--announce", "--hold", "600",
                                                           "--allocate", "1MiB"])
        harness.read_event(load, "allocated")
        self.assertIn("is no device for containers", self.refused("cdi", "run"))
        load.kill()
        load.communicate()
        self.good("rm", "there")
        harness.wait_until(lambda: self.left() == [], what="nothing left")

    def test_two_creates_of_one_name_at_once(self):
        self.start_agent()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(
                lambda _: self.prorata("create", "same", "--memory", "1GiB"), range(8)))
        self.assertEqual(sorted(status for status, _, _ in results), [0] + 7 * [1], results)
        self.assertEqual(len(self.machine.ps()), 1)
        self.good("rm", "same")
        self.assertEqual(self.left(), [])

    def test_no_agent(self):
        for command in (["rm", "x"], ["inspect", "x"], ["cdi", "x"]):
            self.assertIn("no agent runs", self.refused(*command))

    def test_a_folder_that_cannot_be_written(self):
        self.cdi.write_text("a file where the folder should be")
        self.start_agent()
        message = self.refused("create", "train", "--memory", "1GiB")
        self.assertIn("--cdi-dir", message)
        self.assertEqual(self.machine.ps(), [])
        self.cdi.unlink()
        self.good("create", "train", "--memory", "1GiB")

    def test_a_full_disk(self):
        self.cdi.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=1", "none", self.cdi],
                       check=True)
        self.addCleanup(subprocess.run, ["umount", self.cdi], check=False)
        self.start_agent()
        self.assertIn("No space left", self.refused("create", "train", "--memory", "1GiB"))
        self.assertEqual(self.machine.ps(), [])
        self.assertEqual(list(self.cdi.iterdir()), [])
        subprocess.run(["mount", "-o", "remount,size=1m,nr_inodes=64", self.cdi], check=True)
        self.good("create", "train", "--memory", "1GiB")
        self.assertTrue(self.specification("train").exists())

    def test_a_disk_too_full_for_a_share_leaves_nothing_of_it(self):
        self.start_agent()
        shares = self.machine.runtime_dir / "shares"
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", shares], check=True)
        self.addCleanup(subprocess.run, ["umount", "--lazy", shares], check=False)
        self.assertIn("No space left", self.refused("create", "train", "--memory", "1GiB"))
        self.assertEqual(list(shares.iterdir()), [])
        subprocess.run(["mount", "-o", "remount,size=1m", shares], check=True)
        self.good("create", "train", "--memory", "1GiB")
        self.good("rm", "train")
        self.assertEqual(list(shares.iterdir()), [])

    def test_a_damaged_state_is_set_aside(self):
        self.start_agent()
        self.good("create", "train", "--memory", "2GiB", "--compute", "0.3", "--compute-limit", "0.5")
        load = self.machine.start_load(["--name", "train"],
                                       ["--allocate", "128MiB", "--announce", "--hold", "600"])
        harness.read_event(load, "allocated")
        before = self.machine.promises()
        self.machine.kill_agent()
        state = self.machine.runtime_dir / "state.json"
        state.write_text(state.read_text()[:100])
        self.start_agent()
        self.assertEqual(self.machine.promises(), before)
        self.assertTrue((self.machine.runtime_dir / "state.json.damaged").exists())
        self.assertIn("state was damaged", self.good("events", "--json", "--all", "--no-follow"))
        harness.wait_until(lambda: len(self.machine.share("train")["members"]) == 1,
                           what="the member's return")
        load.kill()
        load.communicate()


if __name__ == "__main__":
    unittest.main()
