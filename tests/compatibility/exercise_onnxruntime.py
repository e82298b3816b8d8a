"""ONNX Runtime's CUDA provider: small models made here, its arena and its limit, input and output bound
to the device, CUDA graphs, running out. Nothing is computed, so only bytes that were copied are looked at.
"""
import numpy
import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from onnx import TensorProto, helper, numpy_helper
from exercise import GIB, MIB, expect, expect_equal, finish, step

onnxruntime.preload_dlls(directory="")  # CUDA and cuDNN of the wheels
PROVIDER = "CUDAExecutionProvider"


def model(nodes, inputs, outputs, weights=None):
    graph = helper.make_graph(
        nodes, "compatibility",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(made)
    return made.SerializeToString()


def session(made, **settings):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.log_severity_level = 3
    found = onnxruntime.InferenceSession(made, options, providers=[(PROVIDER, settings)])
    expect_equal(found.get_providers()[0], PROVIDER, "the provider")
    return found


def ones(*shape):
    return numpy.ones(shape, numpy.float32)


def identity(shape):
    return model([helper.make_node("Identity", ["x"], ["y"])], {"x": shape}, {"y": shape})


def device():
    expect(PROVIDER in onnxruntime.get_available_providers(), "no CUDA provider")
    source = numpy.arange(1 << 20, dtype=numpy.float32)
    (back,) = session(identity([1 << 20])).run(None, {"x": source})
    expect(numpy.array_equal(back, source), "bytes that went to the device and back")


def perceptron():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]),
             helper.make_node("Gelu", ["c"], ["d"]), helper.make_node("Gemm", ["d", "v", "e"], ["f"]),
             helper.make_node("Softmax", ["f"], ["y"])]
    weights = {"w": ones(256, 512), "b": ones(512), "v": ones(512, 10), "e": ones(10)}
    found = session(model(nodes, {"x": [None, 256]}, {"y": [None, 10]}, weights))
    for rows in (1, 64, 3):
        expect_equal(found.run(None, {"x": ones(rows, 256)})[0].shape, (rows, 10), "the shape of the result")


def convolution():
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
             helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["c"]),
             helper.make_node("Relu", ["c"], ["d"]),
             helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("ConvTranspose", ["e", "t"], ["f"], strides=[2, 2]),
             helper.make_node("GlobalAveragePool", ["f"], ["y"])]
    weights = {"w": ones(16, 3, 3, 3), "s": ones(16), "b": ones(16), "m": ones(16), "v": ones(16),
               "t": ones(16, 8, 2, 2)}
    made = model(nodes, {"x": [None, 3, 32, 32]}, {"y": [None, 8, 1, 1]}, weights)
    for search in ("DEFAULT", "HEURISTIC", "EXHAUSTIVE"):
        found = session(made, cudnn_conv_algo_search=search)
        for rows in (1, 8):
            (result,) = found.run(None, {"x": ones(rows, 3, 32, 32)})
            expect_equal(result.shape, (rows, 8, 1, 1), "the shape of the result")


def recurrent():
    nodes = [helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=64)]
    weights = {"w": ones(1, 256, 32), "r": ones(1, 256, 64)}
    found = session(model(nodes, {"x": [5, 4, 32]}, {"y": [5, 1, 4, 64]}, weights))
    expect_equal(found.run(None, {"x": ones(5, 4, 32)})[0].shape, (5, 1, 4, 64), "the shape of the result")


def shapes():
    nodes = [helper.make_node("Transpose", ["x"], ["a"], perm=[1, 0]),
             helper.make_node("LayerNormalization", ["a", "s"], ["b"]),
             helper.make_node("ReduceSum", ["b"], ["c"], keepdims=1),
             helper.make_node("Mul", ["b", "c"], ["d"]),
             helper.make_node("Concat", ["d", "b"], ["y"], axis=0)]
    found = session(model(nodes, {"x": [64, 128]}, {"y": [256, 64]}, {"s": ones(64)}))
    expect_equal(found.run(None, {"x": ones(64, 128)})[0].shape, (256, 64), "the shape of the result")


def bound():
    found = session(identity([1 << 20]))
    binding = found.io_binding()
    source = numpy.arange(1 << 20, dtype=numpy.float32)
    there = onnxruntime.OrtValue.ortvalue_from_numpy(source, "cuda", 0)
    expect_equal(there.device_name(), "cuda", "where it is")
    binding.bind_ortvalue_input("x", there)
    binding.bind_output("y", "cuda", 0)
    found.run_with_iobinding(binding)
    (result,) = binding.get_outputs()
    expect_equal(result.device_name(), "cuda", "where the result is")
    expect(numpy.array_equal(result.numpy(), source), "bytes of a result that was bound to the device")


def graph():
    found = session(identity([1 << 16]), enable_cuda_graph="1")
    there = onnxruntime.OrtValue.ortvalue_from_numpy(ones(1 << 16), "cuda", 0)
    result = onnxruntime.OrtValue.ortvalue_from_numpy(ones(1 << 16), "cuda", 0)
    binding = found.io_binding()
    binding.bind_ortvalue_input("x", there)
    binding.bind_ortvalue_output("y", result)
    for factor in (1, 3, 5):
        wanted = numpy.arange(1 << 16, dtype=numpy.float32) * factor
        there.update_inplace(wanted)
        found.run_with_iobinding(binding)
        expect(numpy.array_equal(result.numpy(), wanted), "what a replay computed from new bytes")


def arena_limit():
    found = session(identity([None]), gpu_mem_limit=str(512 * MIB), arena_extend_strategy="kSameAsRequested")
    found.run(None, {"x": ones(16 * MIB)})
    try:
        found.run(None, {"x": ones(256 * MIB)})
        raise AssertionError("the arena's own limit was passed")
    except Fail as error:
        expect("Available memory of" in str(error), f"the error says {error}")


def out_of_memory():
    source = numpy.zeros(512 * MIB, numpy.uint8)
    held = []
    try:
        while len(held) < 64:
            held.append(onnxruntime.OrtValue.ortvalue_from_numpy(source, "cuda", 0))
        raise AssertionError("32 GiB were allocated")
    except Exception as error:  # pylint: disable=broad-except
        expect("Failed to allocate memory" in str(error) or "out of memory" in str(error),
               f"the error says {error}")
    expect(4 * GIB <= len(held) * 512 * MIB, f"{len(held)} times 512 MiB fit")
    count = len(held)
    held.clear()
    held = [onnxruntime.OrtValue.ortvalue_from_numpy(source, "cuda", 0) for _ in range(count)]
    held.clear()
    device()


def main():
    with step("the provider, bytes there and back"):
        device()
    with step("MatMul, Gemm, Gelu, Softmax; batches of different sizes"):
        perceptron()
    with step("cuDNN: Conv by three searches, BatchNormalization, pooling, ConvTranspose"):
        convolution()
    with step("cuDNN: LSTM"):
        recurrent()
    with step("Transpose, LayerNormalization, ReduceSum, Concat"):
        shapes()
    with step("input and output bound to the device"):
        bound()
    with step("CUDA graph captured and replayed"):
        graph()
    with step("the arena's own limit"):
        arena_limit()
    with step("out of memory, caught, and after"):
        out_of_memory()
    finish(onnxruntime.__version__)


main()
