"""What every multi-process test needs: a machine of its own (simulated GPU, agent, runtime folder)
that is wholly gone afterwards, programs run on it, and the simulated NVML as the referee.

    class T(harness.MachineTestCase):
        def test_x(self):
            out = self.machine.run_json(["--memory", "1GiB"], ["--allocate", "128MiB"])

Everything is found under PRORATA_BUILD_DIR. With PRORATA_TEST_GPU=real the machine's own driver is
used in place of the simulated GPU (make gpu-check).
"""
import atexit
import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PRORATA_BUILD_DIR", ROOT / "build")).resolve()
PRORATA = BUILD / "bin" / "prorata"
GPULOAD = BUILD / "bin" / "gpuload"
SIM_DIR = BUILD / "sim"
LIB_DIR = BUILD / "lib"
REAL_GPU = os.environ.get("PRORATA_TEST_GPU") == "real"
MIB = 1 << 20
GIB = 1 << 30
# How long anything may take that must happen; a machine that is busy is no reason to fail.
DEADLINE_S = 180
SANITIZER_LOG = "sanitizer"


def wait_until(condition, deadline_s=DEADLINE_S, what="the condition", step_s=0.01):
    """Calls condition() until it is true and returns what it gave; fails after the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {deadline_s} s")
        time.sleep(step_s)


def alive(pid):
    """Whether a process runs: one that is dead and not yet waited for does not."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


@contextlib.contextmanager
def changed_environment(changes):
    """This process's environment with these variables, for as long as the block runs."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Nvml:
    """The NVML of a driver folder, in this process: what the device itself says."""

    def __init__(self, machine, device=0):
        path = pathlib.Path("libnvidia-ml.so.1")
        if not REAL_GPU:
            # The simulated one serves a process one machine for as long as the process runs: each
            # machine gets a copy, which the loader takes for another library.
            path = machine.folder / path
            if not path.exists():
                shutil.copy(SIM_DIR / path.name, path)
        # It reads its environment when it starts.
        wanted = {name: machine.environment[name]
                  for name in ("PRORATA_SIM_STATE", "PRORATA_SIM_MACHINE")
                  if name in machine.environment}
        with changed_environment(wanted):
            self._library = ctypes.CDLL(str(path))
            self._check(self._library.nvmlInit_v2(), "nvmlInit_v2")
        self._device = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(device, ctypes.byref(self._device)),
                    "nvmlDeviceGetHandleByIndex_v2")

    @staticmethod
    def _check(result, what):
        if result != 0:
            raise RuntimeError(f"{what} gave NVML error {result}")

    def processes(self):
        """{pid: used bytes}, as the device accounts for them."""
        class Info(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong),
                        ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]
        count = ctypes.c_uint(512)
        infos = (Info * 512)()
        self._check(self._library.nvmlDeviceGetComputeRunningProcesses_v3(
            self._device, ctypes.byref(count), infos), "nvmlDeviceGetComputeRunningProcesses_v3")
        return {infos[i].pid: infos[i].used for i in range(count.value)}

    def memory(self):
        """(total, free, used) bytes of the device."""
        class Memory(ctypes.Structure):
            _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]
        memory = Memory()
        self._check(self._library.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)),
                    "nvmlDeviceGetMemoryInfo")
        return memory.total, memory.free, memory.used

    def close(self):
        self._library.nvmlShutdown()


_open_machines = set()


@atexit.register
def close_machines():
    """Those of tests that a signal or Ctrl-C ended."""
    for machine in list(_open_machines):
        machine.close()


class Machine:
    """A simulated machine with its agent, in a temporary folder that every user may enter."""

    def __init__(self, machine_toml=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prorata-test-"))
        self.runtime_dir = self.folder / "run"
        self.folder.chmod(0o755)
        self.runtime_dir.mkdir()
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in ("LD_PRELOAD", "PRORATA_SHARE", "CUDA_VISIBLE_DEVICES")}
        self.environment["PRORATA_DIR"] = str(self.runtime_dir)
        if not REAL_GPU:
            (self.folder / "sim").mkdir()
            self.environment["PRORATA_DRIVER_DIR"] = str(SIM_DIR)
            self.environment["PRORATA_SIM_STATE"] = str(self.folder / "sim")
            if machine_toml:
                (self.folder / "machine.toml").write_text(machine_toml)
                self.environment["PRORATA_SIM_MACHINE"] = str(self.folder / "machine.toml")
        self.environment |= self._sanitizer_options()
        self._started = []
        self._agent = None
        _open_machines.add(self)

    def _sanitizer_options(self):
        """For a build with a sanitizer; no other program reads these.

        Reports go to files, since they must be found even of a program whose standard error nobody
        reads or that is killed. verify_asan_link_order: in a program on a share the client library
        comes first, ASan's own second. detect_leaks: most programs here end by a signal or exec, and
        leaks are looked for by the unit tests. die_after_fork: TSan ends a forked child of a program
        with threads.
        """
        common = f"log_path={self.folder}/{SANITIZER_LOG}:exitcode=99"
        return {
            "ASAN_OPTIONS": common + ":verify_asan_link_order=0:detect_leaks=0",
            "UBSAN_OPTIONS": common + ":print_stacktrace=1",
            "TSAN_OPTIONS": common + f":die_after_fork=0:suppressions={ROOT}/tests/tsan.supp",
        }

    def sanitizer_reports(self):
        return [path.read_text(errors="replace") for path in self.folder.glob(SANITIZER_LOG + "*")
                if path.stat().st_size > 0]

    # Programs.

    def command(self, share_options, program):
        return [str(PRORATA), "run", *share_options, "--", *map(str, program)]

    def start(self, command, environment=None, **options):
        """Starts any command on this machine; it is killed when the test is over."""
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("text", True)
        process = subprocess.Popen([str(part) for part in command],
                                   env={**self.environment, **(environment or {})}, **options)
        self._started.append(process)
        return process

    def call(self, command, timeout_s=DEADLINE_S, environment=None, **options):
        """Runs any command to its end: (exit status, stdout, stderr)."""
        process = self.start(command, environment, **options)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{command} did not end in {timeout_s} s; stderr: {err}") from None
        return process.returncode, out, err

    def start_load(self, share_options, load_options, **options):
        """gpuload on a share of its own."""
        return self.start(self.command(share_options, [GPULOAD, *load_options]), **options)

    def bare_environment(self):
        """For a program without prorata: the simulated driver first on the loader's path."""
        if REAL_GPU:
            return {}
        return {"LD_LIBRARY_PATH": str(SIM_DIR)}

    def run_json(self, share_options, load_options, timeout_s=DEADLINE_S):
        """gpuload on a share, to its end; its report."""
        status, out, err = self.call(self.command(share_options, [GPULOAD, *load_options]),
                                     timeout_s)
        if status != 0:
            raise AssertionError(f"gpuload ended with {status}: {out} {err}")
        return json.loads(out.splitlines()[-1])

    def bare_json(self, load_options, timeout_s=DEADLINE_S):
        """gpuload without prorata."""
        status, out, err = self.call([GPULOAD, *load_options], timeout_s, self.bare_environment())
        if status != 0:
            raise AssertionError(f"gpuload ended with {status}: {out} {err}")
        return json.loads(out.splitlines()[-1])

    # The agent.

    def start_agent(self, *options, program=PRORATA):
        log = open(self.folder / "agent.log", "a")
        self._agent = self.start([program, "agent", *options], stdout=log, stderr=log)
        log.close()
        wait_until(lambda: self.agent_answers() or self._agent.poll() is not None,
                   what="an answer of the agent")
        if self._agent.poll() is not None:
            raise AssertionError("the agent ended: " + self.agent_log())
        return self._agent

    def agent_answers(self):
        status, _, err = self.call([PRORATA, "ps", "--json"])
        return status == 0 and not err

    def kill_agent(self):
        self._agent.send_signal(signal.SIGKILL)
        self._agent.wait()

    def agent_log(self):
        logs = [self.folder / "agent.log", self.runtime_dir / "agent.log"]
        return "\n".join(log.read_text() for log in logs if log.exists())

    def agent_pids(self):
        """Agents of this machine, however started."""
        found = []
        mark = f"PRORATA_DIR={self.runtime_dir}".encode()
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                arguments = (folder / "cmdline").read_bytes().split(b"\0")
                ours = mark in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours and len(arguments) > 1 and arguments[1] == b"agent" and alive(folder.name):
                found.append(int(folder.name))
        return found

    def usage(self, device=0):
        """The simulated device's own account, now: what tests/scenarios/sim_usage.cc says."""
        out = subprocess.run([BUILD / "tests" / "sim_usage", str(device)], input="0\n", env=self.environment,
                             text=True, capture_output=True, check=True, timeout=DEADLINE_S).stdout
        return json.loads(out.splitlines()[-1])

    def busy_since(self, before, device=0):
        """For what part of the time since this `usage` kernels ran on the device."""
        now = self.usage(device)
        return (now["busy_ns"] - before["busy_ns"]) / (now["now_ns"] - before["now_ns"])

    # What the agent says.

    def ps(self):
        status, out, err = self.call([PRORATA, "ps", "--json"])
        if status != 0:
            raise AssertionError(f"prorata ps ended with {status}: {err}")
        return json.loads(out)

    def share(self, name):
        """A share of `ps` with its one device's fields beside its own, or None."""
        found = next((share for share in self.ps() if share["name"] == name), None)
        return found and {**found, **found["devices"][0]}

    def promises(self):
        """What each share was promised: {name: (memory, request, limit, weight)}."""
        return {s["name"]: tuple(s["devices"][0][key] for key in (
            "memory_limit_bytes", "compute_request", "compute_limit", "weight")) for s in self.ps()}

    def gpus(self):
        status, out, err = self.call([PRORATA, "gpus", "--json"])
        if status != 0:
            raise AssertionError(f"prorata gpus ended with {status}: {err}")
        return json.loads(out)

    def close(self):
        _open_machines.discard(self)
        for process in self._started:
            if process.poll() is None:
                process.kill()
        for pid in self.agent_pids():
            os.kill(pid, signal.SIGKILL)
        # Programs of a share outlive a `prorata run` that was killed.
        mark = f"PRORATA_DIR={self.runtime_dir}".encode()
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        os.kill(int(folder.name), signal.SIGKILL)
                except OSError:
                    pass
        for process in self._started:
            process.wait()
            for pipe in (process.stdout, process.stderr, process.stdin):
                if pipe:
                    pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Watcher(threading.Thread):
    """Calls sample() again and again in a thread of its own until stopped; keeps the first error."""

    def __init__(self, sample, step_s=0.001):
        super().__init__(daemon=True)
        self._sample, self._step_s = sample, step_s
        self._over = threading.Event()
        self.error = None
        self.samples = 0

    def run(self):
        while not self._over.is_set() and self.error is None:
            try:
                self._sample()
                self.samples += 1
            except Exception as error:  # pylint: disable=broad-except
                self.error = error
            self._over.wait(self._step_s)

    def stop(self):
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def read_line(process, deadline_s=DEADLINE_S):
    """A line of a program's output; a program that says nothing for so long is killed."""
    line = _read_line_of(process, process.stdout, deadline_s)
    if not line:
        raise AssertionError(f"no line came within {deadline_s} s: {process.stderr.read()}")
    return line


def read_error(process, deadline_s=DEADLINE_S):
    """The same of its standard error."""
    line = _read_line_of(process, process.stderr, deadline_s)
    if not line:
        raise AssertionError(f"no line of an error came within {deadline_s} s")
    return line


def _read_line_of(process, stream, deadline_s):
    killer = threading.Timer(deadline_s, process.kill)
    killer.start()
    try:
        return stream.readline()
    finally:
        killer.cancel()


def read_event(process, event):
    """Reads a gpuload's --announce lines until `event`; returns it."""
    while True:
        found = json.loads(read_line(process))
        if found.get("event") == event:
            return found
        if "event" not in found:
            raise AssertionError(f"no '{event}' came, but {found}")


class MachineTestCase(unittest.TestCase):
    """A fresh machine for every test."""

    MACHINE_TOML = None  # text of a machine.toml; None: the simulated GPU's own default

    def setUp(self):
        for path in (PRORATA, GPULOAD):
            self.assertTrue(path.exists(), f"{path} is not built")
        self.machine = Machine(self.MACHINE_TOML)
        self.addCleanup(self.machine.close)

    def tearDown(self):
        print("--- agent log\n" + self.machine.agent_log()[-8000:])  # shown where the test failed
        reports = self.machine.sanitizer_reports()
        self.assertFalse(reports, "\n".join(reports)[:8000])
