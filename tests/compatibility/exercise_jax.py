"""JAX: its own allocator (XLA's), programs compiled by XLA, cuBLAS, cuDNN, cuFFT and cuSOLVER below them,
running out. Nothing is computed, so only bytes that were copied are looked at.

With the argument `preallocate` JAX takes its pool at once, as it does unless it is told otherwise; with
`platform` each buffer is an allocation of the driver's.
"""
import os
import sys

SETTING = sys.argv[1] if len(sys.argv) > 1 else "grow"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if SETTING == "preallocate" else "false"
if SETTING == "platform":
    os.environ["XLA_PYTHON_CLIENT_ALLOCATOR"] = "platform"
os.environ["JAX_PLATFORMS"] = "cuda"

# pylint: disable=wrong-import-position
import jax
import numpy
from jax import numpy as jnp
from jax._src import hardware_utils
from exercise import MIB, TOTAL_BYTES, expect, expect_equal, finish, step

# JAX looks for a device node, /dev/nvidia0, before it asks a driver; the simulated GPU has none.
# pylint: disable-next=protected-access
hardware_utils._NVIDIA_GPU_DEVICES.append("/dev/null")
POOL_PART = 0.75  # of what is free when JAX starts, unless told otherwise


def put(count):
    return jax.device_put(numpy.zeros(count, numpy.uint8)).block_until_ready()


def device():
    (found,) = jax.devices()
    expect_equal(found.platform, "gpu", "the platform")
    expect_equal(found.device_kind, "Simulated GPU", "the device's name")
    expect_equal(found.compute_capability, "9.0", "compute capability")


def memory():
    (found,) = jax.devices()
    stats = found.memory_stats()
    if SETTING == "platform":
        expect_equal(stats["pool_bytes"], 0, "bytes of a pool that is not")
        if TOTAL_BYTES is not None:
            expect_equal(stats["bytes_limit"], TOTAL_BYTES, "the limit of no pool")
        return
    if TOTAL_BYTES is not None:
        expect(stats["bytes_limit"] <= POOL_PART * TOTAL_BYTES, f"a pool larger than the share: {stats}")
    expect(stats["bytes_limit"] >= 3 << 30, f"a pool too small: {stats}")
    before = stats["bytes_in_use"]
    held = put(256 * MIB)
    now = found.memory_stats()
    expect_equal(now["bytes_in_use"] - before, 256 * MIB, "bytes in use for 256 MiB")
    if SETTING == "preallocate":
        expect(now["pool_bytes"] > 0.9 * now["bytes_limit"], f"the pool was not taken at once: {now}")
    held.delete()
    expect_equal(found.memory_stats()["bytes_in_use"], before, "bytes in use after it is gone")


def copies():
    source = numpy.arange(1 << 20, dtype=numpy.int32)
    there = jax.device_put(source)
    expect(numpy.array_equal(numpy.asarray(there), source), "bytes that went to the device and back")


def out_of_memory():
    shape = jax.ShapeDtypeStruct((1 << 40,), jnp.float32)
    try:
        jax.jit(lambda: jnp.zeros(shape.shape, shape.dtype))().block_until_ready()
        raise AssertionError("4 TiB were allocated")
    except jax.errors.JaxRuntimeError as error:
        expect("RESOURCE_EXHAUSTED" in str(error), f"the error says {error}")
    held = []
    try:
        while len(held) < 64:
            held.append(put(512 * MIB))
        raise AssertionError("32 GiB were allocated")
    except jax.errors.JaxRuntimeError as error:
        expect("RESOURCE_EXHAUSTED" in str(error), f"the error says {error}")
    expect(len(held) >= 6, f"{len(held)} times 512 MiB fit")
    count = len(held)
    for array in held:
        array.delete()
    held = [put(512 * MIB) for _ in range(count - 1)]
    for array in held:
        array.delete()


def compiled():
    data = jnp.ones((128, 128), jnp.float32)

    @jax.jit
    def elementwise(value):
        return jnp.tanh(value * 2 + 1).sum(axis=0)

    elementwise(data).block_until_ready()
    jax.jit(lambda value: jax.lax.scan(lambda carry, row: (carry + row, row), value[0], value))(data)
    jax.jit(lambda value: jnp.sort(value.ravel()))(data).block_until_ready()
    jax.random.normal(jax.random.key(1), (1000,)).block_until_ready()
    gradient = jax.jit(jax.value_and_grad(lambda weight: jnp.square(data @ weight).mean()))
    jax.block_until_ready(gradient(data))
    jax.jit(jax.vmap(lambda row: row @ data))(data).block_until_ready()


def libraries():
    data = jnp.ones((64, 64), jnp.float32)
    for data_type in (jnp.float32, jnp.float16, jnp.bfloat16):
        (data.astype(data_type) @ data.astype(data_type)).block_until_ready()
    image = jnp.ones((8, 32, 32, 3), jnp.float32)
    kernel = jnp.ones((3, 3, 3, 16), jnp.float32)

    @jax.jit
    def convolve(value, weight):
        return jax.lax.conv_general_dilated(value, weight, (1, 1), "SAME",
                                            dimension_numbers=("NHWC", "HWIO", "NHWC"))

    convolve(image, kernel).block_until_ready()
    jax.block_until_ready(jax.grad(lambda w: convolve(image, w).sum())(kernel))
    jnp.fft.ifft2(jnp.fft.fft2(data)).block_until_ready()
    jax.block_until_ready(jnp.linalg.qr(data))
    jax.scipy.linalg.cholesky(data).block_until_ready()
    jax.block_until_ready(jnp.linalg.svd(data))


def train():
    keys = jax.random.split(jax.random.key(0), 2)
    weights = [jax.random.normal(keys[0], (256, 512)), jax.random.normal(keys[1], (512, 10))]
    data = jnp.ones((64, 256))

    def loss(weights):
        return jnp.square(jax.nn.gelu(data @ weights[0]) @ weights[1]).mean()

    @jax.jit
    def update(weights):
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, jax.grad(loss)(weights))

    for _ in range(5):
        weights = update(weights)
    jax.block_until_ready(weights)
    for weight in weights:
        expect_equal(weight.devices(), set(jax.devices()), "where the weights are")


def main():
    with step("device"):
        device()
    with step("memory_stats"):
        memory()
    with step("copies"):
        copies()
    with step("jit, grad, vmap, scan, sort, random numbers"):
        compiled()
    with step("cuBLAS fp32, fp16, bf16; cuDNN convolution and gradient; cuFFT, cuSOLVER"):
        libraries()
    with step("training steps"):
        train()
    # Last, since XLA gives nothing of its pool back: a library that comes to a full device has no room.
    with step("out of memory, caught, and after"):
        out_of_memory()
    finish(jax.__version__)


main()
