"""The Debian packages of this build, made once for whoever tests them."""
import functools
import pathlib
import shutil
import subprocess
import tempfile

import harness


def why_not():
    """What is missing here for packages, or ""."""
    missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps") if shutil.which(tool) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


@functools.cache
def made():
    """{name: file}. They lie in a folder that is gone with Python."""
    folder = tempfile.TemporaryDirectory(prefix="prorata-packages-")
    made.folder = folder
    done = subprocess.run(["cpack", "--config", harness.BUILD / "CPackConfig.cmake", "-B", folder.name],
                          cwd=folder.name, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"cpack ended with {done.returncode}: {done.stdout} {done.stderr}")
    found = pathlib.Path(folder.name).glob("**/*.deb")
    return {path.name.split("_")[0]: path for path in found if "_CPack_Packages" not in str(path)}


def unpacked(name, folder):
    folder.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "-x", made()[name], folder], check=True)
    return folder


def field(name, of):
    return subprocess.run(["dpkg-deb", "-f", made()[name], of], capture_output=True, text=True, check=True).stdout.strip()
