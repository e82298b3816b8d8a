"""cuRAND of CUDA 11, 12 or 13: every generator, several distributions; the host's generator computes."""
from exercise import *  # pylint: disable=wildcard-import,unused-wildcard-import

GENERATORS = {"XORWOW": 101, "MRG32K3A": 121, "MTGP32": 141, "MT19937": 142, "PHILOX4_32_10": 161}
QUASI = {"SOBOL32": 201, "SCRAMBLED_SOBOL32": 202, "SOBOL64": 203}
COUNT = 1 << 20

rt = Runtime()
rand = Library("libcurand.so.10")


def pseudo(kind, data, stream):
    generator = c_void_p()
    rand.call("curandCreateGenerator", byref(generator), kind)
    rand.call("curandSetStream", generator, stream)
    rand.call("curandSetPseudoRandomGeneratorSeed", generator, ctypes.c_ulonglong(42))
    count = c_size_t(COUNT)
    rand.call("curandGenerate", generator, data, count)
    rand.call("curandGenerateUniform", generator, data, count)
    rand.call("curandGenerateNormal", generator, data, count, c_float(0), c_float(1))
    rand.call("curandGenerateUniformDouble", generator, data, c_size_t(COUNT // 2))
    rt.call("cudaStreamSynchronize", stream)
    rand.call("curandDestroyGenerator", generator)


def quasi(kind, data):
    generator = c_void_p()
    rand.call("curandCreateGenerator", byref(generator), kind)
    rand.call("curandSetQuasiRandomGeneratorDimensions", generator, 4)
    if kind == QUASI["SOBOL64"]:
        rand.call("curandGenerateLongLong", generator, data, c_size_t(COUNT // 2))
    else:
        rand.call("curandGenerateUniform", generator, data, c_size_t(COUNT))
    rt.synchronize()
    rand.call("curandDestroyGenerator", generator)


def on_host():
    generator, values = c_void_p(), (c_float * 1000)()
    rand.call("curandCreateGeneratorHost", byref(generator), GENERATORS["XORWOW"])
    rand.call("curandGenerateUniform", generator, values, c_size_t(1000))
    rand.call("curandDestroyGenerator", generator)
    expect(0.4 < sum(values) / 1000 < 0.6, "the mean of the host's uniform numbers")


def main():
    version = c_int()
    with step("version"):
        rand.call("curandGetVersion", byref(version))
    data, stream = rt.malloc(COUNT * 4), rt.stream()
    for name, kind in GENERATORS.items():
        with step(name):
            pseudo(kind, data, stream)
    for name, kind in QUASI.items():
        with step(name):
            quasi(kind, data)
    with step("the host's generator"):
        on_host()
    number = version.value
    finish(f"{number // 1000}.{number // 100 % 10}.{number % 100}")


main()
