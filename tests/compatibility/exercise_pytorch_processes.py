"""PyTorch's CUDA build in two processes: what one holds the other cannot have, and gets when it is freed;
memory of one is handed to the other and read there. On a share both are its members.
"""
import random
import time
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

# pylint: disable=wrong-import-position
import torch
from exercise import GIB, MIB, TOTAL_BYTES, expect, expect_equal, finish, step
from torch import multiprocessing


def allocate(byte_count):
    return torch.empty(byte_count, dtype=torch.uint8, device="cuda")


def fill(seed):
    """Allocates and frees at random, nearly always near what there is; how often it was refused."""
    pick = random.Random(seed)
    held, refused = [], 0
    for _ in range(400):
        try:
            held.append(allocate(pick.randrange(MIB, 512 * MIB)))
        except torch.OutOfMemoryError:
            refused += 1
            pick.shuffle(held)
            del held[len(held) // 2:]
            torch.cuda.empty_cache()
    held.clear()
    torch.cuda.empty_cache()
    return refused


def other(pipe):
    """Answers requests until there is none: its end is the end of what it holds."""
    held = None
    while (request := pipe.recv()) is not None:
        if request == "free":
            held = None
            torch.cuda.empty_cache()
            pipe.send(torch.cuda.mem_get_info())
        elif isinstance(request, str):
            pipe.send(fill(request))
        elif isinstance(request, int):
            try:
                held = allocate(request)  # noqa: F841 (kept until the next request)
                torch.cuda.synchronize()
                pipe.send(torch.cuda.mem_get_info())
            except torch.OutOfMemoryError:
                pipe.send("out of memory")
        else:  # a tensor of the other process
            pipe.send(request.cpu().sum().item())
            del request


def ask(pipe, request):
    pipe.send(request)
    expect(pipe.poll(120), f"no answer to {request} within 120 s")
    return pipe.recv()


def main():
    context = multiprocessing.get_context("spawn")
    total = torch.cuda.mem_get_info()[1]
    pipe, theirs = context.Pipe()
    child = context.Process(target=other, args=(theirs,))
    child.start()
    with step("both see the same device"):
        answer = ask(pipe, 512 * MIB)
        expect_equal(answer[1], total, "the memory of the device in the other process")
        if TOTAL_BYTES is not None:
            expect_equal(total, TOTAL_BYTES, "mem_get_info's total")
    with step("each other's memory counts"):
        held = allocate(total // 2)
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        expect(free < total // 2 - 512 * MIB, f"{free} bytes free beside the other's 512 MiB")
        expect_equal(ask(pipe, total // 2), "out of memory", "an allocation beyond what is left")
    with step("what one frees the other gets"):
        del held
        torch.cuda.empty_cache()
        answer = ask(pipe, total // 2)
        expect(answer != "out of memory", "memory that was freed cannot be had")
        ask(pipe, "free")
    with step("both fill it at once, are refused, and go on"):
        pipe.send("seed")  # never above the share: tests/compatibility/run.py asks the device
        mine = fill("another")
        expect(pipe.poll(300), "the other did not come to an end within 300 s")
        others = pipe.recv()
        expect(mine > 0 and others > 0, f"refused {mine} and {others} times")
        expect(ask(pipe, total // 2) != "out of memory", "half of the memory cannot be had afterwards")
        ask(pipe, "free")
    with step("a tensor of one read in the other"):
        values = torch.arange(1 << 20, device="cpu").cuda()
        torch.cuda.synchronize()
        expect_equal(ask(pipe, values), (1 << 20) * ((1 << 20) - 1) // 2, "the sum of the other's bytes")
    with step("the other ends, its memory comes back"):
        expect(ask(pipe, GIB) != "out of memory", "1 GiB cannot be had")
        before = torch.cuda.mem_get_info()[0]
        pipe.send(None)
        child.join(120)
        expect_equal(child.exitcode, 0, "the other process's end")
        # A share's agent gives a dead member's memory back once it has seen that the device has.
        end = time.monotonic() + 30
        while (gained := torch.cuda.mem_get_info()[0] - before) < GIB:
            expect(time.monotonic() < end, f"only {gained} bytes came back within 30 s")
            time.sleep(0.05)
    finish(torch.__version__)


if __name__ == "__main__":
    main()
