"""Makes the test vectors in this folder with the numpy code of the `gguf` Python package (0.19.0), which was
written independently of ours.

    pip install gguf==0.19.0 && python make_vectors.py

NAME.dec: random and edge blocks, then the f32 values they decode to.
inputs.f32: values to encode. NAME.enc: the blocks they encode to.
sample.gguf: a file with every metadata type and a few tensors, written by the package's writer.
"""

import pathlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter, quants

HERE = pathlib.Path(__file__).parent
RNG = np.random.default_rng(27)

# Byte positions of the half-precision fields of each type: other bytes may hold anything.
HALVES = {
    T.F16: [0],
    T.Q4_0: [0],
    T.Q4_1: [0, 2],
    T.Q5_0: [0],
    T.Q5_1: [0, 2],
    T.Q8_0: [0],
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q4_K: [0, 2],
    T.Q5_K: [0, 2],
    T.Q6_K: [208],
    T.IQ4_NL: [0],
    T.IQ4_XS: [0],
}
# Scales an edge block is made with: nothing, both signs, the largest, the smallest.
EDGE_SCALES = [0.0, 1.0, -1.0, 65504.0, -65504.0, 6e-8, -6e-8]


def blocks(ty):
    block, size = GGML_QUANT_SIZES[ty]
    if ty in (T.F32, T.BF16):
        values = RNG.standard_normal(256).astype(np.float32) * np.float32(10.0) ** RNG.integers(-30, 30, 256)
        values = np.concatenate([values, np.float32([0, -0.0, 3e38, -3e38, 1e-40])]).astype(np.float32)
        return values.view(np.uint8) if ty == T.F32 else quants.quantize(values, ty).view(np.uint8)
    if ty == T.F16:
        # Every finite half-precision number with a step that hits all exponents and both signs.
        return np.concatenate([np.arange(0, 0x7C00, 61), np.arange(0x8000, 0xFC00, 61)]).astype("<u2").view(np.uint8)
    n = 48 if block == 32 else 10
    random = RNG.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES[ty]:
        scales = RNG.standard_normal(n).astype("<f2")
        random[:, at : at + 2] = scales.view(np.uint8).reshape(n, 2)
    edges = []
    for fill in (0x00, 0xFF, 0x80):
        for scale in EDGE_SCALES:
            edge = np.full(size, fill, dtype=np.uint8)
            for at in HALVES[ty]:
                edge[at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), dtype=np.uint8)
            edges.append(edge)
    # Super-blocks are large: the edges that differ most are enough.
    edges = edges if block == 32 else edges[1:21:3]
    return np.concatenate([random, edges]).reshape(-1)


def inputs():
    rows = [RNG.standard_normal(32) * 10.0 ** RNG.integers(-3, 3) for _ in range(32)]
    rows += [
        np.zeros(32),
        np.ones(32),
        -np.ones(32),
        np.arange(32),
        -np.arange(32),
        np.where(np.arange(32) == 17, 5.0, 0.0),
        np.where(np.arange(32) == 31, -5.0, 0.0),
        np.tile([1.0, -1.0], 16),
        np.linspace(-8, 7, 32),
        RNG.standard_normal(32) * 1e-6,
        RNG.uniform(1000, 1001, 32),
        RNG.standard_normal(32) * 6000,
    ]
    return np.concatenate(rows).astype("<f4")


for ty in [T.F32, T.BF16, *HALVES]:
    data = blocks(ty)
    decoded = quants.dequantize(data.reshape(1, -1), ty).astype("<f4").reshape(-1)
    assert np.isfinite(decoded).all(), ty
    (HERE / f"{ty.name}.dec").write_bytes(data.tobytes() + decoded.tobytes())

values = inputs()
(HERE / "inputs.f32").write_bytes(values.tobytes())
for ty in [T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]:
    encoded = quants.quantize(values.reshape(1, -1), ty)
    (HERE / f"{ty.name}.enc").write_bytes(encoded.tobytes())

w = GGUFWriter(HERE / "sample.gguf", "test")
w.add_uint8("u8", 200)
w.add_int8("i8", -100)
w.add_uint16("u16", 60000)
w.add_int16("i16", -30000)
w.add_uint32("u32", 4000000000)
w.add_int32("i32", -2000000000)
w.add_float32("f32", 0.15625)
w.add_bool("bool", True)
w.add_string("string", "grüße 🦙")
w.add_array("ints", [3, -1, 2])
w.add_array("floats", [0.5, -2.0])
w.add_array("bools", [True, False, True])
w.add_array("strings", ["<s>", "", "ö", "a b"])
w.add_uint64("u64", 2**63 + 5)
w.add_int64("i64", -(2**62))
w.add_float64("f64", 1e300)
w.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
w.add_tensor("half", np.array([1.5, -2.0], dtype=np.float16))
q8 = quants.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), T.Q8_0)
w.add_tensor("quantized", q8, raw_dtype=T.Q8_0)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
