"""A share is its owner's: other users neither join nor change it unless it says so, and read no more
of it than its figures."""
import json
import os
import socket
import struct
import unittest

import harness

OTHER_USER = 65534
THIRD_USER = 65533
CONTROL_JSON = 64


class Owners(harness.MachineTestCase):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to act as other users")
        self.machine.start_agent()

    def share(self, *options):
        """A share of root's, with a member."""
        self.machine.start_load(["--name", "mine", "--memory", "4GiB", *options],
                                ["--allocate", "64MiB", "--hold", "600"])
        harness.wait_until(lambda: (self.machine.share("mine") or {}).get("members"),
                           what="a member")
        self.open_the_device()

    def open_the_device(self):
        """What a driver's device nodes are: for everybody."""
        folder = self.machine.folder / "sim"
        folder.chmod(0o777)
        for path in folder.iterdir():
            path.chmod(0o666)

    def call_as(self, user, command, environment=None):
        return self.machine.call(command, environment=environment, user=user, group=user,
                                 extra_groups=[], cwd="/")

    def join_as(self, user, share="mine"):
        folder = self.machine.runtime_dir / "shares" / share
        status, _, err = self.call_as(
            user, [harness.GPULOAD, "--allocate", "64MiB"],
            {"PRORATA_SHARE": str(folder), "LD_LIBRARY_PATH": str(harness.LIB_DIR),
             "LD_PRELOAD": str(harness.LIB_DIR / "libcuda.so.1")})
        return status, err

    def ask_as(self, user, request):
        """The reply on the control socket to a process of this user."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.machine.runtime_dir / "control"))
                body = json.dumps(request).encode()
                connection.sendall(struct.pack("<IHH", len(body), CONTROL_JSON, 1) + body)
                answer = b""
                while len(answer) < 8 or len(answer) < 8 + struct.unpack("<I", answer[:4])[0]:
                    answer += connection.recv(65536)
            theirs.sendall(answer[8:])
            os._exit(0)
        theirs.close()
        with ours:
            text = b""
            while data := ours.recv(65536):
                text += data
        os.waitpid(child, 0)
        return json.loads(text)

    def assert_not_theirs(self, user, share="mine"):
        status, err = self.join_as(user, share)
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        for words in ("belongs to user 0", f"user {user}", "--allow-users"):
            self.assertIn(words, err)

    def test_others_do_not_join(self):
        self.share()
        self.assert_not_theirs(OTHER_USER)
        self.assertEqual(self.join_as(0), (0, ""))
        told = [line for line in self.machine.agent_log().splitlines() if "turned away" in line]
        self.assertIn("belongs to another user", told[0])

    def test_who_is_allowed_joins(self):
        self.share("--allow-users", f"{OTHER_USER},daemon")
        self.assertEqual(self.join_as(OTHER_USER), (0, ""))
        self.assertEqual(self.join_as(1), (0, ""))
        self.assert_not_theirs(THIRD_USER)
        # The next agent knows it, too.
        self.machine.kill_agent()
        self.machine.start_agent()
        self.assertEqual(self.machine.share("mine")["allow_users"], f"1,{OTHER_USER}")
        self.assertEqual(self.join_as(OTHER_USER), (0, ""))
        self.assert_not_theirs(THIRD_USER)

    def test_all_may_be_allowed(self):
        self.share("--allow-users", "all")
        self.assertEqual(self.join_as(OTHER_USER), (0, ""))
        self.assertEqual(self.join_as(THIRD_USER), (0, ""))

    def test_nobody_else_changes_or_ends_it(self):
        self.share("--allow-users", str(OTHER_USER))
        before = self.machine.promises()
        for request in ({"op": "update_share", "name": "mine", "change": {"weight": 3}},
                        {"op": "remove_share", "name": "mine"}):
            error = self.ask_as(OTHER_USER, request)["error"]
            self.assertEqual(error["code"], "not_allowed")
            for words in ("'mine'", "belongs to user 0", f"user {OTHER_USER}"):
                self.assertIn(words, error["message"])
        self.assertEqual(self.machine.promises(), before)
        self.assertFalse(self.machine.share("mine")["ended"])

    def test_others_read_its_figures_and_no_more(self):
        self.share()
        owners = self.machine.share("mine")
        self.assertEqual([m["command"] for m in owners["members"]], ["gpuload"])
        seen = self.ask_as(OTHER_USER, {"op": "list_shares"})["shares"][0]
        self.assertEqual(seen["name"], "mine")
        self.assertEqual(seen["devices"][0]["memory_limit_bytes"], 4 * harness.GIB)
        self.assertEqual([m["command"] for m in seen["members"]], [""])
        events = self.ask_as(OTHER_USER, {"op": "events", "since": 0})["events"]
        self.assertIn("member_joined", [event["event"] for event in events])
        self.assertEqual([event for event in events if "command" in event], [])
        events = self.ask_as(0, {"op": "events", "since": 0})["events"]
        self.assertIn("gpuload", [event.get("command") for event in events])

    def test_a_line_of_a_file_says_who(self):
        path = self.machine.folder / "resource-config.txt"
        line = f"team 0.2 1 {4 * harness.GIB}"
        path.write_text(f"1\n{line}\n")
        self.machine.kill_agent()
        self.machine.start_agent("--resource-config", f"0={path}")
        self.assertEqual(self.join_as(0, "team"), (0, ""))
        self.open_the_device()
        self.assert_not_theirs(OTHER_USER, "team")
        path.write_text(f"1\n{line} users={OTHER_USER}\n")
        harness.wait_until(lambda: self.machine.share("team")["allow_users"], what="the change")
        self.assertEqual(self.join_as(OTHER_USER, "team"), (0, ""))
        # By its name, as its owner does.
        made = self.ask_as(OTHER_USER, {"op": "create_share", "share": {"name": "team"}})
        self.assertEqual(made["share"]["name"], "team")
        self.assertEqual(self.ask_as(THIRD_USER, {"op": "create_share", "share": {"name": "team"}})
                         ["error"]["code"], "not_allowed")


if __name__ == "__main__":
    unittest.main()
