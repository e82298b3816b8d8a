"""What a container may try, run in it as root by tests/containers/test_hostile.py. Prints what it could
do that it must not, one JSON list at the end. Begins when it is told to, by a line: the start of a container
takes a processor from whoever uses one, hostile or not."""
import array
import errno
import json
import mmap
import os
import socket
import struct
import sys
import time

SHARE = "/run/prorata/share"
JOIN, GRANT = 1, 3
found = []


def must_fail(what, action, *allowed):
    try:
        action()
    except OSError as error:
        if allowed and error.errno not in allowed:
            found.append(f"{what}: {error}")
        return
    found.append(f"{what}: it was done")


def write(path):
    with open(path, "r+b") as file:
        file.write(b"x")


def connect(at_once=False):
    """Waits for room in the agent's queue, where a thousand connections were a moment ago, but if it is to be `at_once`."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.setblocking(not at_once)
    peer.connect(SHARE + "/socket")
    peer.settimeout(20)
    return peer


def frame(kind, body, version=1):
    return struct.pack("=IHH", len(body), kind, version) + body


def is_closed(peer):
    """Whether the other end hangs up: it may answer first."""
    try:
        while peer.recv(4096):
            pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def files():
    for name in ("limits", "held", "new"):
        must_fail(f"write {name}", lambda name=name: write(f"{SHARE}/{name}"))
        must_fail(f"truncate {name}", lambda name=name: os.truncate(f"{SHARE}/{name}", 0))
        must_fail(f"remove {name}", lambda name=name: os.unlink(f"{SHARE}/{name}"))
        must_fail(f"chmod {name}", lambda name=name: os.chmod(f"{SHARE}/{name}", 0o666))
    must_fail("make a file", lambda: os.close(os.open(SHARE + "/new", os.O_CREAT | os.O_RDWR)))
    must_fail("rename the socket", lambda: os.rename(SHARE + "/socket", SHARE + "/other"))
    with open(SHARE + "/limits", "rb") as file:
        must_fail("map for writing", lambda: mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED,
                                                       mmap.PROT_WRITE))
    others = sorted(set(os.listdir("/run/prorata")) - {"share", "driver"})
    if others:
        found.append(f"it sees {others}")
    must_fail("another share", lambda: os.stat(SHARE + "/../shares"), errno.ENOENT)


def messages():
    for kind in range(0, 24):
        for size in (0, 1, 7, 64):
            peer = connect()
            peer.sendall(frame(kind, b"\xff" * size))
            if not is_closed(peer):
                found.append(f"message {kind} of {size} bytes keeps its connection")
            peer.close()
    for header in (struct.pack("=IHH", 0xFFFFFFFF, JOIN, 1), os.urandom(4096)):
        peer = connect()
        peer.sendall(header)
        if not is_closed(peer):
            found.append("an oversized message keeps its connection")
        peer.close()


def usage_memory():
    # What is not sealed could shrink under the agent.
    fd = os.memfd_create("usage", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    peer = connect()
    body = b"\0" * 32
    peer.sendmsg([frame(JOIN, body)],
                 [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    if not is_closed(peer):
        found.append("an unsealed usage memory is taken")
    os.ftruncate(fd, 0)
    peer.close()


def connections():
    opened = []
    for _ in range(1000):
        try:
            opened.append(connect(at_once=True))
        except OSError:
            break
    for peer in opened:
        peer.close()
    return len(opened)


print(json.dumps({"event": "ready"}), flush=True)
sys.stdin.readline()
end = time.monotonic() + float(sys.argv[1])
rounds, connected = 0, []
while time.monotonic() < end:
    files()
    messages()
    usage_memory()
    connected.append(connections())
    rounds += 1
print(json.dumps({"event": "done", "found": found, "rounds": rounds, "connected": connected}), flush=True)
sys.stdin.readline()  # lives while it is looked at
