#!/usr/bin/env python3
"""Fetches what `make test-compatibility` needs from PyPI: tests/compatibility/wheels.toml names it all.

    scripts/compatibility_wheels.py BUILD light|all

Each set of wheels goes into a virtual environment of its own, BUILD/compatibility/NAME (cuda11, cuda12,
cuda13), made once and made anew when the list changes. What is to be fetched, and how big it is, is
said before. What cannot be had is said loudly, and is no error here: the test run skips it by name.
"""
import pathlib
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "compatibility" / "wheels.toml"


def wheels(tier):
    """{environment: {part: {wheel: (version, bytes, SHA-256)}}} of a tier; `all` includes `light`."""
    out = {}
    for environment, parts in tomllib.loads(LIST.read_text()).items():
        out[environment] = {part: {name: tuple(value) for name, value in found.items()}
                            for part, found in parts.items() if tier == "all" or part == "light"}
    return out


def stamp_of(found):
    return "".join(f"{name}=={version}\n" for name, (version, *_) in found.items())


def requirements_of(found):
    """What pip is to install: a wheel with another hash is refused."""
    return "".join(f"{name}=={version} --hash=sha256:{sha256}\n"
                   for name, (version, _, sha256) in found.items())


def install(folder, part, found):
    names = [f"{name}=={version}" for name, (version, *_) in found.items()]
    megabytes = sum(size for _, size, _ in found.values()) / 1e6
    print(f"compatibility: fetching {megabytes:,.0f} MB for {folder.name} ({part}): {' '.join(names)}", flush=True)
    if not (folder / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wanted = folder / f"{part}.txt"
    wanted.write_text(requirements_of(found))
    done = subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps", "--no-cache-dir",
                           "--no-compile", "--disable-pip-version-check", "--require-hashes",
                           "--requirement", str(wanted)], check=False)
    if done.returncode != 0:
        print(f"compatibility: NOT FETCHED for {folder.name} ({part}), see above; what needs it is skipped", flush=True)
        return
    (folder / f".{part}").write_text(stamp_of(found))


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in ("light", "all"):
        print(__doc__)
        return 2
    root = pathlib.Path(sys.argv[1]) / "compatibility"
    for environment, parts in wheels(sys.argv[2]).items():
        folder = root / environment
        stamps = {part: folder / f".{part}" for part in parts}
        if any(stamp.exists() and stamp.read_text() != stamp_of(parts[part])
               for part, stamp in stamps.items()):
            shutil.rmtree(folder)
        for part, found in parts.items():
            if not stamps[part].exists():
                install(folder, part, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
