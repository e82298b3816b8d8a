#!/usr/bin/env python3
"""Builds a real Kubernetes, containerd and Helm for the tests, into BUILD/kubernetes/bin.

    scripts/kubernetes_build.py BUILD [PART...]

Parts are containerd, helm and kubernetes, which are built if none is named; 1.34: that Kubernetes, an older one, into
BUILD/kubernetes/bin-1.34, beside the containerd of the other; docker: Docker, into BUILD/kubernetes/docker.
From the Go module proxy alone, by the modules of tests/kubernetes/modules: eight minutes of two
cores where Go's cache is cold, half a minute where it is warm, nothing where what is there was built
from the same files. Needs Go 1.26 and 7 GB for Go's caches (GOMODCACHE, GOCACHE);
ends with 3 where there is no Go at all."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODULES = ROOT / "tests/kubernetes/modules"
LEAST_GO = (1, 26)
NO_GO = 3  # the exit status where there is no Go

# By the module that has it.
KUBERNETES = {"kubernetes": "v1.36.3", "kubernetes-1.34": "v1.34.4"}
CONTAINERD = "v2.2.9"
HELM = "v4.3.1"
DOCKER = "28.5.2"


# Kubernetes takes its version from the linker; the date is fixed so that builds are the same.
def version_flags(version: str) -> str:
    return " ".join(
        f"-X {package}.{name}={value}"
        for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
        for name, value in (
            ("gitVersion", version),
            ("gitMajor", "1"),
            ("gitMinor", version.split(".")[1]),
            ("gitTreeState", "clean"),
            ("buildDate", "2026-01-01T00:00:00Z"),
        )
    )


LINKS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


def fail(message: str):
    sys.exit(f"kubernetes_build: {message}")


def go_program() -> str:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if not go:
        print(
            "kubernetes_build: there is no `go`: install Go 1.26 or later from https://go.dev/dl, then run this again",
            file=sys.stderr,
        )
        sys.exit(NO_GO)
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    version = tuple(int(part) for part in said.strip().removeprefix("go").split(".")[:2])
    if version < LEAST_GO:
        fail(
            f"Kubernetes {KUBERNETES['kubernetes']} needs Go 1.26 and {go} is {said.strip()}:"
            " install a later one from https://go.dev/dl and put it first in PATH"
        )
    return go


def stamp(module: str) -> str:
    """Of what decides the outcome: the module and this file."""
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for path in sorted((MODULES / module).iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def go_build(go: str, module: str, flags: list[str], what: list[str], output: pathlib.Path):
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false -mod=readonly", "GOTOOLCHAIN": "local"}
    command = [go, "build", "-trimpath", *flags, "-o", str(output), *what]
    if subprocess.run(command, cwd=MODULES / module, env=environment).returncode:
        fail(f"`go build` in {MODULES / module} failed, see above; where modules could not be fetched, GOPROXY decides")


def build_containerd(go: str, folder: pathlib.Path):
    print(f"kubernetes_build: containerd {CONTAINERD}", flush=True)
    go_build(
        go,
        "containerd",
        [
            "-tags=no_btrfs,no_zfs,no_devmapper",
            f"-ldflags=-s -w -X github.com/containerd/containerd/v2/version.Version={CONTAINERD}",
        ],
        [f"github.com/containerd/containerd/v2/cmd/{program}" for program in CONTAINERD_PROGRAMS],
        made(folder / "bin"),
    )


def build_helm(go: str, folder: pathlib.Path):
    print(f"kubernetes_build: Helm {HELM}", flush=True)
    go_build(
        go,
        "helm",
        [f"-ldflags=-s -w -X helm.sh/helm/v4/internal/version.version={HELM}"],
        ["helm.sh/helm/v4/cmd/helm"],
        made(folder / "bin") / "helm",
    )


def build_kubernetes(go: str, folder: pathlib.Path):
    link_kubernetes(go, "kubernetes", made(folder / "bin"))


def build_older(go: str, folder: pathlib.Path):
    link_kubernetes(go, "kubernetes-1.34", made(folder / "bin-1.34"))


def link_kubernetes(go: str, module: str, binaries: pathlib.Path):
    print(f"kubernetes_build: Kubernetes {KUBERNETES[module]}", flush=True)
    flags = version_flags(KUBERNETES[module])
    go_build(go, module, [f"-ldflags=-s -w {flags}"], ["."], binaries / "kubernetes")
    for name in LINKS:
        (binaries / name).unlink(missing_ok=True)
        (binaries / name).symlink_to("kubernetes")


def build_docker(go: str, folder: pathlib.Path):
    print(f"kubernetes_build: Docker {DOCKER}", flush=True)
    flags = f"-s -w -X github.com/docker/docker/dockerversion.Version={DOCKER} -X github.com/docker/cli/cli/version.Version={DOCKER}"
    programs = ["docker/cmd/dockerd", "docker/cmd/docker-proxy", "cli/cmd/docker"]
    go_build(
        go,
        "docker",
        [f"-ldflags={flags}"],
        [f"github.com/docker/{program}" for program in programs],
        made(folder / "docker"),
    )


def made(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# By its name: what builds it, and of which module.
PARTS = {
    "containerd": (build_containerd, "containerd"),
    "helm": (build_helm, "helm"),
    "kubernetes": (build_kubernetes, "kubernetes"),
    "1.34": (build_older, "kubernetes-1.34"),
    "docker": (build_docker, "docker"),
}
USUAL = ("containerd", "helm", "kubernetes")


def main():
    names = sys.argv[2:] or USUAL
    if len(sys.argv) < 2 or not set(names) <= set(PARTS):
        fail(f"usage: scripts/kubernetes_build.py BUILD [PART...], where a part is one of {', '.join(PARTS)}")
    folder = pathlib.Path(sys.argv[1]).resolve() / "kubernetes"
    for name in names:
        make, module = PARTS[name]
        recorded, now = folder / f"stamp-{name}", stamp(module)
        if recorded.exists() and recorded.read_text() == now:
            continue
        recorded.unlink(missing_ok=True)
        make(go_program(), folder)
        recorded.write_text(now)


main()
