"""The product's image as docs/guide/kubernetes.md has it made: by podman and deploy/kubernetes/Dockerfile, of this
build's packages. For nothing here reaches a registry, its base is made here, of the machine's Debian mirror, and is
kept in the build folder."""

import os
import pathlib
import re
import shutil
import subprocess

import harness
import packages

BASE = "localhost/debian:12-slim"  # which podman takes for the Dockerfile's debian:12-slim
ARCHIVE = harness.BUILD / "debian-base.tar"
BUILD_S = 600
CONFIGURATION = """[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
netns = "host"
"""


def why_not():
    if reason := packages.why_not():
        return "NEEDS PACKAGING: " + reason
    missing = [tool for tool in ("podman", "runc", "debootstrap") if shutil.which(tool) is None]
    return f"NEEDS PODMAN: {', '.join(missing)} is not installed" if missing else ""


def _run(command, environment=None):
    done = subprocess.run(command, cwd=harness.ROOT, env=environment, capture_output=True, text=True, check=False,
                          timeout=BUILD_S)  # fmt: skip
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return done.stdout


def _mirror():
    for path in (pathlib.Path("/etc/apt/sources.list"), *pathlib.Path("/etc/apt/sources.list.d").glob("*")):
        if path.exists() and (found := re.search(r"^[^#\n]*?(https?://\S+/debian)/?\s", path.read_text(), re.M)):
            return found[1]
    raise AssertionError("apt's sources name no mirror of Debian")


def _make_base(folder):
    tree = folder / "debian"
    _run(["debootstrap", "--variant=minbase", "bookworm", tree, _mirror()])
    made = folder / "base.tar"
    _run(["tar", "-C", tree, "-c", "-f", made, "."])
    shutil.move(made, ARCHIVE)
    shutil.rmtree(tree)


class Builder:
    """podman with a storage of its own below `folder`."""

    def __init__(self, folder):
        self.folder = folder / "podman"
        self.folder.mkdir(parents=True)
        (self.folder / "containers.conf").write_text(CONFIGURATION)
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\nrunroot = "{self.folder}/run"\n'
        )
        self.environment = {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }
        if not ARCHIVE.exists():
            _make_base(self.folder)
        _run(["podman", "import", ARCHIVE, BASE], self.environment)

    def follow(self, command, name):
        """A command of the page that makes the image `name` of the packages in build/packages."""
        packed = self.folder / "packages"
        packed.mkdir()
        for path in packages.made().values():
            shutil.copy(path, packed)
        assert "build/packages" in command, command
        _run(["sh", "-c", command.replace("build/packages", str(packed))], {**self.environment, "IMAGE": name})

    def save(self, name):
        """The image as an archive, which containerd imports."""
        path = self.folder / "image.tar"
        _run(["podman", "save", "--format", "docker-archive", "-o", path, name], self.environment)
        return path

    def close(self):
        mine = f"{self.folder}/"
        for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
            if (point := line.split()[4]).startswith(mine):
                subprocess.run(["umount", "-l", point], check=False)
        shutil.rmtree(self.folder)
