"""bitsandbytes: quantization, linear layers of 8 and 4 bits, optimizers of 8 bits and paged ones. Nothing
is computed: every call must go through, and memory be what the format says.
"""
import bitsandbytes
import torch
from bitsandbytes import functional
from exercise import MIB, TOTAL_BYTES, expect, expect_equal, finish, step


def taken(make):
    """What make() gave, and how much PyTorch has more for it."""
    before = torch.cuda.memory_allocated()
    made = make()
    torch.cuda.synchronize()
    return made, torch.cuda.memory_allocated() - before


def library():
    expect(bitsandbytes.cextension.lib.compiled_with_cuda, "bitsandbytes found no CUDA library of its own")
    if TOTAL_BYTES is not None:
        expect_equal(torch.cuda.mem_get_info()[1], TOTAL_BYTES, "mem_get_info's total")


def blockwise():
    data = torch.ones(1 << 20, device="cuda")
    for blocksize in (4096, 256, 64):
        quantized, state = functional.quantize_blockwise(data, blocksize=blocksize)
        expect_equal(quantized.dtype, torch.uint8, "the type of quantized values")
        back = functional.dequantize_blockwise(quantized, state)
        expect_equal(back.shape, data.shape, "the shape of dequantized values")
    torch.cuda.synchronize()


def four_bits():
    data = torch.ones(1024, 1024, device="cuda", dtype=torch.float16)
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            quantized, state = functional.quantize_4bit(data, quant_type=kind, compress_statistics=nested)
            expect_equal(quantized.nbytes, data.numel() // 2, "bytes of values of four bits")
            back = functional.dequantize_4bit(quantized, state)
            expect_equal(back.shape, data.shape, "the shape of dequantized values")
            bitsandbytes.matmul_4bit(data[:1], quantized.t(), state)
            bitsandbytes.matmul_4bit(data[:64], quantized.t(), state)
    torch.cuda.synchronize()


def layer(make, weight_bytes, data_type):
    made, held = taken(lambda: make().cuda())
    expect(weight_bytes <= held <= weight_bytes * 1.3 + MIB,
           f"a weight that is {weight_bytes} bytes in its format took {held}")
    data = torch.ones(64, 2048, device="cuda", dtype=data_type, requires_grad=True)
    for rows in (1, 64):  # one row has kernels of its own
        made(data[:rows]).sum().backward()
    torch.cuda.synchronize()
    expect(data.grad is not None, "no gradient passed the layer")


def optimizers():
    for kind in ("Adam8bit", "AdamW8bit", "SGD8bit", "Lion8bit", "RMSprop8bit", "Adagrad8bit",
                 "AdEMAMix8bit", "PagedAdamW8bit", "PagedAdamW32bit"):
        model = torch.nn.Linear(2048, 2048).cuda()
        made = getattr(bitsandbytes.optim, kind)
        optimizer = made(model.parameters(), lr=1e-3, **({"momentum": 0.9} if kind == "SGD8bit" else {}))
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(4, 2048, device="cuda")).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
        expect(len(optimizer.state) > 0, f"{kind} keeps no state")


def embedding():
    made = bitsandbytes.nn.StableEmbedding(1000, 64).cuda()
    made(torch.zeros(10, dtype=torch.int64, device="cuda")).sum().backward()
    torch.cuda.synchronize()


def out_of_memory():
    try:
        functional.quantize_4bit(torch.empty(1 << 45, device="cuda", dtype=torch.float16))
        raise AssertionError("64 TiB were allocated")
    except torch.OutOfMemoryError as error:
        expect("out of memory" in str(error).lower(), f"the error says {error}")
    large = torch.empty(1 << 28, device="cuda", dtype=torch.float16)
    held = []
    try:
        while True:
            held.append(functional.quantize_4bit(large))
    except torch.OutOfMemoryError:
        pass
    total = torch.cuda.mem_get_info()[1]
    each = sum(tensor.nbytes for tensor in (held[0][0], held[0][1].absmax))
    expect(total - (3 << 30) < large.nbytes + len(held) * each < total,
           f"{large.nbytes} and {len(held)} times {each} bytes fit into {total}")
    held.clear()
    del large
    torch.cuda.empty_cache()
    functional.quantize_4bit(torch.empty(1 << 28, device="cuda", dtype=torch.float16))


def main():
    with step("its library found, the device"):
        library()
    with step("blockwise quantization, 8 bits"):
        blockwise()
    with step("nf4 and fp4, statistics compressed and not, matmul_4bit"):
        four_bits()
    with step("Linear8bitLt, forward and backward"):
        layer(lambda: bitsandbytes.nn.Linear8bitLt(2048, 2048, bias=False, has_fp16_weights=False),
              2048 * 2048, torch.float16)
    with step("Linear4bit, forward and backward"):
        layer(lambda: bitsandbytes.nn.Linear4bit(2048, 2048, bias=False, compute_dtype=torch.bfloat16),
              2048 * 2048 // 2, torch.bfloat16)
    with step("nine optimizers, two of them paged (managed memory)"):
        optimizers()
    with step("StableEmbedding"):
        embedding()
    with step("out of memory while quantizing, caught, and after"):
        out_of_memory()
    finish(bitsandbytes.__version__)


main()
