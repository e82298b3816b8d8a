"""Images of other distributions, made of their packages (scripts/setup.sh userlands BUILD fetches them):
their C library, loader and ldconfig, a static busybox, and gpuload linked against the oldest of them.

What is not there is skipped by name. A folder BUILD/userlands/NAME that somebody else has put the unpacked
libc6 (and libc-bin) of a distribution into is used like a fetched one.
"""
import fcntl
import functools
import shutil
import subprocess
import unittest

import harness
import image

FOLDER = harness.BUILD / "userlands"
OLDEST = "debian11"
SHELL = ("sh", "cat", "env", "grep", "id", "ls", "rm", "sleep", "true")
# What is built for the machine's glibc, linked anew: {name there: what ninja knows it by}.
RELINKED = {"gpuload": "bin/gpuload", "libcuda.so.1": "sim/libcuda.so.1",
            "libnvidia-ml.so.1": "sim/libnvidia-ml.so.1"}
STATIC = ("libstdc++.a", "libgcc_eh.a", "libgcc.a", "libc_nonshared.a")
# glibc's files that programs are linked to by name, and what dlopen and getpwnam load.
GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libnss_files.so.2",
         "ld-linux-x86-64.so.2")


def tree(name):
    """The unpacked packages of a distribution."""
    folder = FOLDER / name
    if not list(folder.glob("**/libc.so.6")):
        raise unittest.SkipTest(f"NEEDS {name.upper()}: no packages of it in {folder}; `scripts/setup.sh "
                                "userlands BUILD` fetches those of Debian 11 and 13 where that can be reached")
    return folder


def libraries(name):
    """{name: file} of its C library."""
    found = next(iter(tree(name).glob("**/libc.so.6"))).parent
    return {library: (found / library).resolve() for library in GLIBC if (found / library).exists()}


@functools.cache
def relinked():
    """A folder with gpuload and the simulated driver, for the oldest glibc there is."""
    out = FOLDER / "relinked"
    out.mkdir(exist_ok=True)
    with open(out / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run beside each other, each in a process of its own
        relink(out)
    return out


def relink(out):
    glibc = libraries(OLDEST)
    for name, target in RELINKED.items():
        source = harness.BUILD / target
        if (out / name).exists() and (out / name).stat().st_mtime > source.stat().st_mtime:
            continue
        commands = subprocess.run(["ninja", "-C", harness.BUILD, "-t", "commands", target], text=True,
                                  capture_output=True, check=True).stdout.splitlines()
        (link,) = (line for line in commands if f" -o {target} " in line)
        link = link.split("&&")[1].split()
        link[link.index(target)] = str(out / f"{name}.new")
        helper = out / f"older_glibc-{name}.o"
        program = ["-DPROGRAM"] if target.startswith("bin/") else []
        subprocess.run([link[0], "-x", "c", "-O1", "-fPIC", "-fvisibility=hidden", *program, "-c", "-o", helper,
                        harness.ROOT / "tests" / "containers" / "older_glibc.c"], check=True)
        last = [helper, "-Wl,--start-group", *(f"-l:{one}" for one in STATIC), *glibc.values(), "-Wl,--end-group"]
        subprocess.run([*(part for part in link if part != "-ldl"), "-nodefaultlibs", *last],
                       cwd=harness.BUILD, check=True)
        (out / f"{name}.new").rename(out / name)
    shutil.copy(harness.SIM_DIR / "machine.toml", out)


def red_hats_loader(loader):
    """Debian's loader, which looks for libraries where Red Hat's does, and there alone: /lib64, /usr/lib64."""
    code = loader.read_bytes()
    for folder, instead in ((b"/usr/lib/x86_64-linux-gnu/", b"/usr/lib64/"), (b"/lib/x86_64-linux-gnu/", b"/lib64/")):
        if folder + b"\0" not in code:
            raise unittest.SkipTest(f"NEEDS A LOADER like Red Hat's: that of {loader} cannot be made one")
        code = code.replace(folder + b"\0", instead.ljust(len(folder), b"/") + b"\0")
    return code


def write(path, name, programs=(), red_hat=False, more=None, ldconfig=True):
    """A root file system as a tar. `programs`: as image.write. `more`: called with its folder before its
    ld.so.cache is made, if it is to have one."""
    root = path.with_suffix(".root")
    for folder in image.FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for link, target in image.LINKS.items():
        (root / link).symlink_to(target)
    for file, text in image.TEXTS.items():
        (root / file).write_text(text)
    place = "usr/lib64" if red_hat else "usr/lib/x86_64-linux-gnu"
    for library, file in libraries(name).items():
        shutil.copy(file, root / place / library)
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    if red_hat:
        loader.write_bytes(red_hats_loader(loader))
    elif not loader.exists():
        loader.symlink_to(f"/{place}/{loader.name}")
    (root / "etc/ld.so.conf").write_text(f"/{place}\n")
    shutil.copy(next(iter(tree(OLDEST).glob("**/bin/busybox"))), root / "usr/bin/busybox")
    for tool in SHELL:
        (root / "usr/bin" / tool).symlink_to("busybox")
    shutil.copy(relinked() / "gpuload", root / "usr/bin/gpuload")
    for source, target, mode in programs:
        shutil.copy(source, root / target)
        (root / target).chmod(mode)
    if more:
        more(root)
    maker = next(iter(tree(name).glob("**/sbin/ldconfig")), None)
    if maker and ldconfig:
        shutil.copy(maker, root / "usr/bin/ldconfig")
        subprocess.run([maker, "-r", root], check=True)
    subprocess.run(["tar", "-C", root, "-cf", path, "."], check=True)
    shutil.rmtree(root)
