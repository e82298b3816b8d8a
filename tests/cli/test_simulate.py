"""`prorata simulate`: bad input is one clear line and exit status 2; its outputs say the same."""
import csv
import io
import json
import pathlib
import subprocess
import tempfile
import unittest

import harness

OPENB = pathlib.Path(__file__).resolve().parents[2] / "bench" / "placement" / "openb"
NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def simulate(*arguments):
    done = subprocess.run([harness.PRORATA, "simulate", *map(str, arguments)], capture_output=True,
                          text=True, timeout=harness.DEADLINE_S, check=False)
    return done.returncode, done.stdout, done.stderr


class Simulate(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="prorata-simulate-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.nodes = self.file("nodes.csv", NODES + "a,64000,1000,4,T4\n")
        self.pods = self.file("pods.csv", PODS + "p,4000,10,1,500,T4\nq,4000,10,1,1000,\n")

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def refused(self, words, *arguments):
        status, out, err = simulate(*arguments)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
        self.assertTrue(err.startswith("prorata: "), err)
        for word in words:
            self.assertIn(word, err)

    def test_bad_files(self):
        for text, words in (
                (NODES + "a,64000,1000,4\n", [":2: ", "too few columns"]),
                (NODES + "a,64000,1000,four,T4\n", [":2: ", "gpu: 'four'"]),
                (NODES + "a,64000,1000,4,T4\na,64000,1000,4,T4\n", [":3: ", "already on line 2"]),
                (NODES + "a,64000,1000,0,\n", [":2: ", "has no GPU", "--cpu-nodes"]),
                (NODES, ["no node has a GPU"]),
                ("", ["the file is empty"])):
            bad = self.file("bad.csv", text)
            self.refused([str(bad), *words], "--nodes", bad, "--pods", self.pods)
        bad = self.file("bad.csv", PODS + "p,4000,10,1,500,H100\n")
        self.refused([f"{bad}:2: ", "H100", "T4"], "--nodes", self.nodes, "--pods", bad)
        self.refused(["/nowhere.csv: cannot be opened"], "--nodes", "/nowhere.csv", "--pods", self.pods)

    def test_departures_need_times(self):
        self.refused([str(self.pods), "creation_time"], "--nodes", self.nodes, "--pods", self.pods,
                     "--arrivals", "times")

    def test_bad_options(self):
        both = ("--nodes", self.nodes, "--pods", self.pods)
        self.refused(["--policy", "'best'", "best-fit"], *both, "--policy", "best")
        self.refused(["--seeds", "'9-1'"], *both, "--seeds", "9-1")
        self.refused(["--arrivals", "'never'"], *both, "--arrivals", "never")
        self.refused(["--look-ahead"], *both, "--look-ahead", "33")
        self.refused(["--nodes", "--gpus"], "--pods", self.pods)

    def test_packing(self):
        """What each GPU has at the end: the second share does not fit beside the first."""
        nodes = self.file("large.csv", NODES[:-1] + ",gpu_memory_mib\na,64000,1000,3,T4,16384\n")
        pods = self.file("parts.csv", PODS[:-1] + ",gpu_memory_mib\np,0,0,1,500,,8192\nq,0,0,1,700,,1024\nr,0,0,1,300,,512\n")
        packing = self.folder / "packing.csv"
        status, _, err = simulate("--nodes", nodes, "--pods", pods, "--arrivals", "trace", "--policy", "best-fit,prorata",
                                  "--packing", packing)
        self.assertEqual((status, err), (0, ""))
        rows = list(csv.DictReader(io.StringIO(packing.read_text(encoding="utf-8"))))
        self.assertEqual([(row["policy"], row["seed"], row["node"], row["gpu"]) for row in rows],
                         [(policy, "42", "a", str(gpu)) for policy in ("best-fit", "prorata") for gpu in range(3)])
        for of in (rows[:3], rows[3:]):
            self.assertEqual(sorted((int(row["gpu_milli"]), int(row["gpu_memory_mib"])) for row in of),
                             [(0, 0), (500, 8192), (1000, 1536)])
        status, _, err = simulate("--nodes", nodes, "--pods", pods, "--packing", "/nowhere/packing.csv")
        self.assertEqual(status, 1)
        self.assertIn("/nowhere/packing.csv: cannot be written", err)

    def test_outputs_agree(self):
        points = self.folder / "points.csv"
        arguments = ("--nodes", self.nodes, "--pods", self.pods, "--seeds", "1,2", "--policy",
                     "fgd,prorata")
        status, out, err = simulate(*arguments, "--json", "--csv", points, "--plot",
                                    self.folder / "plot.svg")
        self.assertEqual((status, err), (0, ""))
        answer = json.loads(out)
        self.assertEqual([each["policy"] for each in answer["policies"]], ["fgd", "prorata"])
        rows = list(csv.DictReader(io.StringIO(points.read_text(encoding="utf-8"))))
        self.assertEqual(len(rows), sum(len(run["points"]) for each in answer["policies"]
                                        for run in each["runs"]))
        self.assertIn("<svg", (self.folder / "plot.svg").read_text(encoding="utf-8"))
        status, table, err = simulate(*arguments)
        self.assertEqual((status, err), (0, ""))
        plan = answer["plan"]
        self.assertIn(f"This load needs {plan['gpus_shared']} GPUs with sharing and "
                      f"{plan['gpus_whole']} without", table)

    def test_a_cluster_of_100000_gpus(self):
        status, out, err = simulate("--gpus", 100_000, "--load", 20, "--no-plan", "--json")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(json.loads(out)["gpus"], 100_000)


if __name__ == "__main__":
    unittest.main()
