"""torch.compile: Triton compiles kernels with its own ptxas, loads and launches them by the driver API."""
import os
import tempfile
import warnings

FOLDER = tempfile.mkdtemp(prefix="prorata-compatibility-")
os.environ |= {"TRITON_CACHE_DIR": FOLDER, "TORCHINDUCTOR_CACHE_DIR": FOLDER,
               "TORCHINDUCTOR_COMPILE_THREADS": "1"}
warnings.filterwarnings("ignore")

# pylint: disable=wrong-import-position
import shutil

import torch
from exercise import expect_equal, finish, step


def main():
    try:
        data = torch.ones(1000, 1000, device="cuda")
        with step("elementwise kernel"):
            out = torch.compile(lambda x: torch.relu(x) * 2 + 1)(data)
            torch.cuda.synchronize()
            expect_equal(out.shape, data.shape, "the result's shape")
        with step("reduction, within a graph"):
            out = torch.compile(lambda x: torch.softmax(x, -1).sum(), mode="reduce-overhead")
            for _ in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                out(data)
            torch.cuda.synchronize()
        finish(torch.__version__)
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


main()
