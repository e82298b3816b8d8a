"""PyTorch's CUDA build: training steps and the libraries below them. Nothing is computed, so no value is
looked at: every call must go through, and memory come back.
"""
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

# pylint: disable=wrong-import-position
import torch
from exercise import TOTAL_BYTES, expect, expect_equal, finish, step
from torch import nn
from torch.nn import functional


def train(model, data, optimizer_type=torch.optim.SGD, steps=3, **options):
    model = model.cuda()
    optimizer = optimizer_type(model.parameters(), lr=0.01, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        output = model(data)
        output = output[0] if isinstance(output, tuple) else output
        loss = output.float().square().mean()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    expect(all(p.grad is not None and p.grad.is_cuda for p in model.parameters()), "a gradient is missing")


def mixed_precision():
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for data_type in (torch.float16, torch.bfloat16):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=data_type):
            loss = model(torch.ones(64, 256, device="cuda")).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()


def attention():
    query, key, value = (torch.ones(2, 8, 128, 64, device="cuda", dtype=torch.float16, requires_grad=True)
                         for _ in range(3))
    functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
    layer = nn.TransformerEncoderLayer(256, 8, batch_first=True)
    train(layer, torch.ones(4, 64, 256, device="cuda"))


def graphed():
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10)).cuda()
    sample = torch.ones(8, 3, 32, 32, device="cuda")
    model = torch.cuda.make_graphed_callables(model, (sample,))
    train(model, sample)


def libraries():
    data = torch.ones(64, 64, device="cuda")
    torch.fft.ifft2(torch.fft.fft2(data))
    torch.linalg.cholesky_ex(data)
    torch.linalg.qr(data)
    torch.sparse.mm(torch.eye(64).to_sparse_csr().cuda(), data)  # made here: nothing is computed there
    torch.randn(1000, device="cuda")
    torch.sort(torch.ones(1 << 16, device="cuda"))
    torch.cumsum(torch.ones(1 << 16, device="cuda"), 0)
    torch.ones(100, 100, device="cuda").to_dense()
    torch.cuda.synchronize()


def nvml():
    used = torch.cuda.device_memory_used()
    expect(used > 0, "device_memory_used is 0")
    if TOTAL_BYTES is not None:
        expect(used <= TOTAL_BYTES, f"{used} bytes used of a share of {TOTAL_BYTES}")
    expect(0 <= torch.cuda.utilization() <= 100, "utilization")
    expect("process" in torch.cuda.list_gpu_processes(), "list_gpu_processes")


def main():
    with step("linear, SGD"):
        train(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)),
              torch.ones(64, 512, device="cuda"))
    with step("convolution, batch norm, Adam"):
        train(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                            nn.ConvTranspose2d(32, 8, 3)),
              torch.ones(8, 3, 32, 32, device="cuda"), torch.optim.Adam)
    with step("LSTM"):
        train(nn.LSTM(64, 128, num_layers=2), torch.ones(20, 8, 64, device="cuda"))
    with step("mixed precision, fused AdamW"):
        mixed_precision()
    with step("attention, transformer layer"):
        attention()
    with step("make_graphed_callables"):
        graphed()
    with step("cuFFT, cuSOLVER, cuSPARSE, cuRAND, sort below PyTorch"):
        libraries()
    with step("NVML: device_memory_used, utilization, processes"):
        nvml()
    with step("all memory comes back"):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_allocated()
        expect(held < 64 << 20, f"{held} bytes are still allocated")  # cuBLAS workspaces stay
        expect_equal(torch.cuda.memory_stats()["num_ooms"], 0, "allocations that failed")
    finish(torch.__version__)


main()
