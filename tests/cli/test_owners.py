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


class Users(harness.MachineTestCase):
    """What several users do with one machine."""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to act as other users")

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

    def assert_not_theirs(self, user, share="mine", owner=0):
        status, err = self.join_as(user, share)
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        for words in (f"belongs to user {owner}", f"user {user}", "--allow-users"):
            self.assertIn(words, err)

    def assert_changed_by_nobody(self, user, owner=0):
        """Neither a change nor an end by a user that it does not belong to."""
        def stands():
            share = self.machine.share("mine")
            return self.machine.promises(), share["allow_users"], share["ended"]
        before = stands()
        for request in ({"op": "update_share", "name": "mine", "change": {"weight": 3}},
                        {"op": "update_share", "name": "mine", "change": {"allow_users": "all"}},
                        {"op": "remove_share", "name": "mine"}):
            error = self.ask_as(user, request)["error"]
            self.assertEqual(error["code"], "not_allowed")
            for words in ("'mine'", f"belongs to user {owner}", f"user {user}"):
                self.assertIn(words, error["message"])
        self.assertEqual(stands(), before)
        self.assertFalse(before[2])

    def assert_reads_no_more(self, user):
        """Of the agent's folder a user reads its shares' limits, and of a member's process nothing."""
        found = {}
        for path in sorted(self.machine.runtime_dir.rglob("*")):
            if path.is_file():
                found[str(path.relative_to(self.machine.runtime_dir))] = self.call_as(
                    user, ["head", "-c", "1", path])[0] == 0
        self.assertIn("state.json", found)
        self.assertEqual([name for name, readable in found.items() if readable], ["shares/mine/limits"])
        self.assertNotEqual(self.call_as(user, ["sh", "-c", "echo > $0",
                                                self.machine.runtime_dir / "shares/mine/limits"])[0], 0)
        (member,) = self.machine.share("mine")["members"]
        self.assertNotEqual(self.call_as(user, ["ls", f"/proc/{member['pid']}/fd"])[0], 0)


class Owners(Users):
    def setUp(self):
        super().setUp()
        self.machine.start_agent()

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

    def update(self, users):
        self.assertEqual(self.machine.call([harness.PRORATA, "update", "mine", "--allow-users", users]),
                         (0, "", ""))

    def test_who_is_allowed_changes_while_it_runs(self):
        self.share()
        self.assert_not_theirs(OTHER_USER)
        self.update(f"{OTHER_USER},daemon")
        self.assertEqual(self.join_as(OTHER_USER), (0, ""))
        self.assert_not_theirs(THIRD_USER)
        # The next agent knows it, too.
        self.machine.kill_agent()
        self.machine.start_agent()
        self.assertEqual(self.machine.share("mine")["allow_users"], f"1,{OTHER_USER}")
        # Who runs on it stays when it is taken back; nobody joins.
        holder = self.machine.start(
            [harness.GPULOAD, "--allocate", "64MiB", "--hold", "600"],
            {"PRORATA_SHARE": str(self.machine.runtime_dir / "shares" / "mine"),
             "LD_LIBRARY_PATH": str(harness.LIB_DIR), "LD_PRELOAD": str(harness.LIB_DIR / "libcuda.so.1")},
            user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd="/")
        harness.wait_until(lambda: len(self.machine.share("mine")["members"]) == 2, what="its member")
        self.update("none")
        self.assert_not_theirs(OTHER_USER)
        self.assertEqual(len(self.machine.share("mine")["members"]), 2)
        self.assertIsNone(holder.poll())
        self.update("all")
        self.assertEqual(self.join_as(THIRD_USER), (0, ""))
        told = [event["detail"] for event in self.ask_as(0, {"op": "events", "since": 0})["events"]
                if event["event"] == "share_changed"]
        self.assertEqual(told, [f"allow-users 1,{OTHER_USER} to none", "allow-users none to all"])

    def test_nobody_else_changes_or_ends_it(self):
        self.share("--allow-users", str(OTHER_USER))
        self.assert_changed_by_nobody(OTHER_USER)

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
        self.assert_reads_no_more(OTHER_USER)

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


class OwnersWithoutRoot(Users):
    """The agent is a user's own: other users reach nothing of it, unless its user opens its folder."""

    def setUp(self):
        super().setUp()
        for folder in (self.machine.runtime_dir, self.machine.folder / "sim"):
            os.chown(folder, OTHER_USER, OTHER_USER)
        self.as_owner = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": [], "cwd": "/"}
        agent = self.machine.start([harness.PRORATA, "agent"], **self.as_owner)
        harness.wait_until(lambda: (self.machine.runtime_dir / "control").exists() or
                           agent.poll() is not None, what="the agent's socket")
        self.assertIsNone(agent.poll())
        # Root's own programs do not ask an agent of a user's.
        self.machine.ps = lambda: self.ask_as(OTHER_USER, {"op": "list_shares"})["shares"]
        self.machine.start(
            self.machine.command(["--name", "mine", "--memory", "4GiB"],
                                 [harness.GPULOAD, "--allocate", "64MiB", "--hold", "600"]), **self.as_owner)
        harness.wait_until(lambda: (self.machine.share("mine") or {}).get("members"), what="a member")
        self.open_the_device()

    def open_the_folder(self):
        for path in (self.machine.runtime_dir, self.machine.runtime_dir / "shares",
                     self.machine.runtime_dir / "shares" / "mine"):
            path.chmod(0o755)
        (self.machine.runtime_dir / "control").chmod(0o666)

    def test_others_reach_nothing(self):
        self.assertEqual(self.machine.share("mine")["owner_uid"], OTHER_USER)
        self.assertEqual(self.join_as(OTHER_USER), (0, ""))
        self.assertEqual(self.join_as(0), (0, ""))
        for path in (".", "state.json", "shares", "shares/mine", "shares/mine/limits", "control"):
            path = self.machine.runtime_dir / path
            for test in ("-r", "-w", "-x"):
                self.assertNotEqual(self.call_as(THIRD_USER, ["test", test, path])[0], 0, (test, path))
        status, err = self.join_as(THIRD_USER)
        self.assertEqual((status, err.count("\n")), (1, 1), err)
        self.assertIn("its limits file cannot be opened", err)
        # Nor do they trust this agent: whoever runs it could lie about all of it.
        for command in (self.machine.command(["--name", "x"], ["true"]), [harness.PRORATA, "ps"],
                        [harness.PRORATA, "update", "mine", "--allow-users", "all"]):
            status, _, err = self.call_as(THIRD_USER, command)
            self.assertEqual((status, err.count("\n")), (1, 1), err)
            self.assertIn(f"belongs to user {OTHER_USER}", err)
        self.assertEqual([(share["name"], share["allow_users"]) for share in self.machine.ps()],
                         [("mine", "")])

    def test_where_its_user_opened_the_folder_the_same_holds_as_with_roots(self):
        self.open_the_folder()
        self.assert_not_theirs(THIRD_USER, owner=OTHER_USER)
        self.assert_changed_by_nobody(THIRD_USER, owner=OTHER_USER)
        self.assert_reads_no_more(THIRD_USER)
        seen = self.ask_as(THIRD_USER, {"op": "list_shares"})["shares"][0]
        self.assertEqual([m["command"] for m in seen["members"]], [""])
        for request in ({"op": "create_share", "share": {"name": "theirs"}}, {"op": "shutdown"}):
            error = self.ask_as(THIRD_USER, request)["error"]
            self.assertEqual(error["code"], "not_allowed", request)
        self.assertEqual([share["name"] for share in self.machine.ps()], ["mine"])

    def test_its_user_lets_another_in_and_out(self):
        self.open_the_folder()

        def update(users):
            return self.call_as(OTHER_USER, [harness.PRORATA, "update", "mine", "--allow-users", users])
        self.assertEqual(update(str(THIRD_USER)), (0, "", ""))
        self.assertEqual(self.join_as(THIRD_USER), (0, ""))
        error = self.ask_as(THIRD_USER, {"op": "update_share", "name": "mine", "change": {"weight": 3}})
        self.assertEqual(error["error"]["code"], "not_allowed")
        self.assertEqual(update("none"), (0, "", ""))
        self.assert_not_theirs(THIRD_USER, owner=OTHER_USER)


if __name__ == "__main__":
    unittest.main()
