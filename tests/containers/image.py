"""An image made of this machine's own programs, since tests have no network: a shell, a few tools,
gpuload, and what these link to. No driver library and no part of prorata is in it."""
import hashlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import tarfile

import harness

TOOLS = ("sh", "bash", "cat", "ls", "env", "id", "sleep", "true", "setsid")
FOLDERS = ("dev", "etc", "proc", "run", "sys", "tmp", "root", "usr/lib/x86_64-linux-gnu", "usr/lib64",
           "usr/bin")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/bin"}
# The rest of the C library, which every image with glibc has, linked to or not.
GLIBC = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libutil.so.1")
# Files of the image's own that say who is who.
TEXTS = {"etc/passwd": "root:x:0:0::/root:/bin/sh\nworker:x:1000:1000::/tmp:/bin/sh\n",
         "etc/group": "root:x:0:\nworker:x:1000:\n"}


def libraries_of(program):
    """{name in the image: file here} of what a program is linked to, the loader included; of another file: none."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    found = {}
    for path in re.findall(r"(?:=> )?(/\S+) \(0x", out):
        folder = "usr/lib64" if "ld-linux" in path else "usr/lib/x86_64-linux-gnu"
        found[f"{folder}/{pathlib.Path(path).name}"] = pathlib.Path(path).resolve()
    return found


def write(path, programs=()):
    """A root file system as a tar. `programs`: more of them, (file here, name there, mode)."""
    wanted = [(pathlib.Path(shutil.which(tool)).resolve(), f"usr/bin/{tool}", 0o755)
              for tool in TOOLS]
    wanted += [(harness.GPULOAD, "usr/bin/gpuload", 0o755),
               (harness.GPULOAD, "usr/bin/gpuload-setuid", 0o4755), *programs]
    folder = pathlib.Path("/usr/lib/x86_64-linux-gnu")
    files = {f"{folder}/{name}"[1:]: ((folder / name).resolve(), 0o755) for name in GLIBC}
    for source, name, mode in wanted:
        files[name] = (source, mode)
        for library, origin in libraries_of(source).items():
            files[library] = (origin, 0o755)
    with tarfile.open(path, "w") as tar:
        for folder in FOLDERS:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for name, target in LINKS.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for name, text in TEXTS.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, (source, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = source.stat().st_size, mode
            with open(source, "rb") as data:
                tar.addfile(entry, data)


def write_archive(path, root_tar, names, command):
    """A tar that `ctr images import` takes, of a root file system."""
    layer = hashlib.sha256(root_tar.read_bytes()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }
    )
    digest = hashlib.sha256(config.encode()).hexdigest()
    folder = path.parent
    (folder / "config.json").write_text(config)
    manifest = [{"Config": f"{digest}.json", "RepoTags": names, "Layers": ["layer.tar"]}]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with tarfile.open(path, "w") as tar:
        tar.add(folder / "config.json", f"{digest}.json")
        tar.add(root_tar, "layer.tar")
        tar.add(folder / "manifest.json", "manifest.json")
