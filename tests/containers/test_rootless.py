"""podman without root: a user of the machine, made for the test, with an agent of his own."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

import harness
import image
import podman
from harness import GIB, MIB

LOAD = ["gpuload", "--allocate", "128MiB", "--until-refused"]


def why_not():
    if reason := podman.why_not():
        return reason
    if not all(map(shutil.which, ("newuidmap", "newgidmap", "useradd", "runuser"))):
        return "newuidmap or useradd is missing; `scripts/setup.sh containers` installs uidmap"
    return ""


class Rootless(harness.MachineTestCase):
    def setUp(self):
        if reason := why_not():
            self.skipTest("NEEDS ROOTLESS PODMAN: " + reason)
        super().setUp()
        self.user = f"prorata-t{os.getpid()}"
        made = subprocess.run(["useradd", "--no-create-home", "--home-dir", self.machine.folder, self.user],
                              capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest(f"NEEDS ROOTLESS PODMAN: no user can be made here: {made.stderr}")
        self.addCleanup(self.remove_user)
        folder = self.machine.folder
        (folder / "containers.conf").write_text(podman.CONFIGURATION)
        (folder / "xdg").mkdir()
        self.tar = folder / "root.tar"
        image.write(self.tar)
        subprocess.run(["chown", "-R", f"{self.user}:", folder], check=True)
        (folder / "xdg").chmod(0o700)
        self.machine.environment |= {"CONTAINERS_CONF": str(folder / "containers.conf"), "HOME": str(folder),
                                     "XDG_RUNTIME_DIR": str(folder / "xdg")}
        if self.as_user("test", "-x", harness.PRORATA)[0] != 0:
            self.skipTest(f"NEEDS ROOTLESS PODMAN: another user cannot read {harness.BUILD}")
        self.podman("import", self.tar, podman.IMAGE)
        status, out, err = self.as_user("podman", "run", "--rm", podman.IMAGE, "true")
        if status != 0:
            self.skipTest(f"NEEDS ROOTLESS PODMAN: it cannot run a container here: {out} {err}".strip())

    def remove_user(self):
        # What podman leaves running for its user, who is the test's own.
        uid = int(subprocess.run(["id", "-u", self.user], text=True, capture_output=True, check=True).stdout)
        for process in pathlib.Path("/proc").iterdir():
            try:
                if process.name.isdigit() and process.stat().st_uid == uid:
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                pass
        subprocess.run(["userdel", "--force", self.user], capture_output=True, check=False)

    def as_user(self, *command):
        return self.machine.call(["runuser", "-u", self.user, "--", *command], cwd=self.machine.folder)

    def podman(self, *arguments):
        status, out, err = self.as_user("podman", *arguments)
        self.assertEqual(status, 0, f"podman {arguments}: {out} {err}")
        return out

    def start_agent(self):
        log = open(self.machine.folder / "agent.log", "w")
        before = os.umask(0)  # the simulated GPU's state is files, and a GPU is for every user of a container
        try:
            self.machine.start(["runuser", "-u", self.user, "--", harness.PRORATA, "agent"], stdout=log, stderr=log)
        finally:
            os.umask(before)
            log.close()
        harness.wait_until(lambda: self.as_user(harness.PRORATA, "ps")[::2] == (0, ""),
                           what="an answer of the user's agent")

    def share(self):
        """The only one, as the user sees it; root's own `prorata` asks no agent of another user."""
        (share,) = json.loads(self.as_user(harness.PRORATA, "ps", "--json")[1])
        return share

    def test_a_users_container_has_its_share_of_the_users_agent(self):
        self.start_agent()
        status, out, err = self.as_user(harness.PRORATA, "create", "train", "--memory", "2GiB", "--allow-users", "all")
        self.assertEqual((status, out), (0, "prorata.dev/share=train\n"), err)
        self.assertNotEqual(self.share()["owner_uid"], 0)
        _, volumes, _ = self.as_user(harness.PRORATA, "cdi", "--volumes", "train")
        for options in ([], ["--user", "1000"], ["--read-only"], ["--userns", "keep-id"]):
            with self.subTest(options=options):
                out = self.podman("run", "--rm", *options, *volumes.split(), podman.IMAGE, *LOAD)
                report = json.loads(out.splitlines()[-1])
                self.assertEqual(report["allocated_bytes"], 2 * GIB - 512 * MIB)
        harness.wait_until(lambda: self.share()["devices"][0]["used_bytes"] == 0, what="the memory back")


if __name__ == "__main__":
    unittest.main()
