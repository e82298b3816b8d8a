"""CTranslate2: a small Transformer with weights of zeros, made here, loaded in each of its data types;
scores, logits, workers, running out. Nothing is computed, so no text is decoded: which tokens come next is
read from the device, and CTranslate2 takes what it reads for tokens.

It allocates by stream-ordered pools; with the argument `cub_caching` by a cache of its own over cudaMalloc.
"""
import ctypes
import os
import pathlib
import sys
import tempfile

if len(sys.argv) > 1:
    os.environ["CT2_CUDA_ALLOCATOR"] = sys.argv[1]

# pylint: disable=wrong-import-position
import numpy
from exercise import MIB, PACKAGES, expect, expect_equal, finish, step

# It opens cuBLAS by its name when it needs it, and the loader does not look into wheels.
for LIBRARY in ("cublas/lib/libcublasLt.so.12", "cublas/lib/libcublas.so.12"):
    ctypes.CDLL(str(PACKAGES / "nvidia" / LIBRARY), ctypes.RTLD_GLOBAL)

import ctranslate2

DEPTH, HEADS, LAYERS = 256, 4, 2
# A multiple of 16: CTranslate2 pads no logits.
VOCABULARY = ["<unk>", "<s>", "</s>", *(f"token{number}" for number in range(1005))]


def zeros(*shape):
    return numpy.zeros(shape, numpy.float32)


def fill(spec):
    """Every weight that the specification wants, by its place."""
    def set_linear(linear, rows, columns):
        linear.weight, linear.bias = zeros(rows, columns), zeros(rows)

    def set_norm(norm):
        norm.gamma, norm.beta = zeros(DEPTH), zeros(DEPTH)

    def set_attention(attention, sizes):
        set_norm(attention.layer_norm)
        for linear, rows in zip(attention.linear, sizes, strict=True):
            set_linear(linear, rows, DEPTH)

    embeddings = spec.embeddings if isinstance(spec.embeddings, list) else [spec.embeddings]
    for embedding in embeddings:
        embedding.weight = zeros(len(VOCABULARY), DEPTH)
    set_norm(spec.layer_norm)
    for layer in spec.layer:
        set_attention(layer.self_attention, (3 * DEPTH, DEPTH))
        if hasattr(layer, "attention"):
            set_attention(layer.attention, (DEPTH, 2 * DEPTH, DEPTH))
        set_norm(layer.ffn.layer_norm)
        set_linear(layer.ffn.linear_0, 4 * DEPTH, DEPTH)
        set_linear(layer.ffn.linear_1, DEPTH, 4 * DEPTH)
    if hasattr(spec, "projection"):
        set_linear(spec.projection, len(VOCABULARY), DEPTH)


def translator_model(folder):
    spec = ctranslate2.specs.TransformerSpec.from_config(LAYERS, HEADS)
    fill(spec.encoder)
    fill(spec.decoder)
    spec.register_source_vocabulary(VOCABULARY)
    spec.register_target_vocabulary(VOCABULARY)
    save(spec, folder)


def generator_model(folder):
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(LAYERS, HEADS)
    fill(spec.decoder)
    spec.register_vocabulary(VOCABULARY)
    save(spec, folder)


def save(spec, folder):
    spec.validate()
    spec.optimize()
    folder.mkdir()
    spec.save(str(folder))


def device():
    expect_equal(ctranslate2.get_cuda_device_count(), 1, "devices")
    kinds = ctranslate2.get_supported_compute_types("cuda")
    expect({"float32", "float16", "bfloat16", "int8_float16"} <= kinds, f"compute types: {kinds}")


def copies():
    source = numpy.arange(1 << 20, dtype=numpy.int32)
    there = ctranslate2.StorageView.from_array(source).to_device(ctranslate2.Device.cuda)
    expect_equal(there.device, "cuda", "where it is")
    back = numpy.array(there.to_device(ctranslate2.Device.cpu))
    expect(numpy.array_equal(back, source), "bytes that went to the device and back")


def score(folder):
    source = [["token1", "token2", "token3"], ["token4"]]
    for kind in ("float32", "float16", "bfloat16", "int8_float32", "int8_float16", "int8_bfloat16"):
        translator = ctranslate2.Translator(str(folder), device="cuda", compute_type=kind)
        expect_equal(translator.compute_type, kind, "the compute type")
        expect_equal([len(found.log_probs) for found in translator.score_batch(source, source)], [4, 2],
                     "scores of two texts and their ends")
        translator.unload_model()
        translator.load_model()
        expect_equal(len(translator.score_batch(source, source)), 2, "scores of a model that was loaded again")


def logits(folder):
    for kind in ("float32", "float16", "int8_float16"):
        generator = ctranslate2.Generator(str(folder), device="cuda", compute_type=kind)
        found = generator.forward_batch([["<s>", "token1"], ["<s>"]])
        expect_equal((found.device, found.shape), ("cuda", [2, 2, len(VOCABULARY)]), "the logits")
        expect_equal(len(generator.score_batch([["<s>", "token1", "token2"]])), 1, "scores")


def workers(folder):
    translator = ctranslate2.Translator(str(folder), device="cuda", device_index=[0, 0, 0])
    expect_equal(translator.num_translators, 3, "workers on the device")
    batches = [translator.score_batch([["token1"]] * 4, [["token2"]] * 4, asynchronous=True)
               for _ in range(12)]
    expect_equal(sum(len(found.result().log_probs) for batch in batches for found in batch), 96, "scores")


def out_of_memory():
    # Pieces of a size that leaves room at the end: what a launch took for code is counted a second late.
    host = ctranslate2.StorageView.from_array(numpy.zeros(500 * MIB, numpy.int8))
    held = []
    try:
        while len(held) < 64:
            held.append(host.to_device(ctranslate2.Device.cuda))
        raise AssertionError("32 GiB were allocated")
    except RuntimeError as error:
        expect("out of memory" in str(error), f"the error says {error}")
    count = len(held)
    expect(count >= 9, f"{count} times 500 MiB fit")
    held.clear()
    held = [host.to_device(ctranslate2.Device.cuda) for _ in range(count)]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        translator_model(folder / "translator")
        generator_model(folder / "generator")
        with step("device"):
            device()
        with step("copies"):
            copies()
        with step("scores of translations in six data types; a model unloaded and loaded"):
            score(folder / "translator")
        with step("logits and scores of a generator in three"):
            logits(folder / "generator")
        with step("three workers at once"):
            workers(folder / "translator")
        with step("out of memory, caught, and after"):
            out_of_memory()
    finish(ctranslate2.__version__)


main()
