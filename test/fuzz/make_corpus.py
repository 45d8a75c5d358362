#!/usr/bin/env python3
"""Writes the first inputs of the array formats' fuzz targets into corpus/. The same every time.

usage: make_corpus.py
"""
import gzip
import io
import json
import pathlib
import struct
import zipfile

CORPUS = pathlib.Path(__file__).resolve().parent / "corpus"
CHECKPOINT = CORPUS.parent.parent / "golden/checkpoint.safetensors"


def npy(descr, shape, data, fortran=False, version=1):
    text = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (descr, fortran, shape)
    head = struct.pack("<H" if version == 1 else "<I", len(text) + 1)
    return b"\x93NUMPY" + bytes([version, 0]) + head + text.encode() + b"\n" + data


def idx(kind, shape, data):
    return bytes([0, 0, kind, len(shape)]) + b"".join(struct.pack(">I", n) for n in shape) + data


def npz(compression, **arrays):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as z:
        for name, data in arrays.items():
            z.writestr(zipfile.ZipInfo(name + ".npy"), data, compression)
    return out.getvalue()


def tensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def parts(*files):
    return b"".join(struct.pack("<H", len(f)) + f for f in files)


def main():
    x = npy("|u1", (4, 2, 3), bytes(range(24)))
    y = npy("<i8", (4,), struct.pack("<4q", 0, 1, 2, 1))
    floats = npy("<f4", (4, 3), struct.pack("<12f", *range(12)))
    cifar = b"".join(bytes([label]) + bytes(3072) for label in (3, 9))
    cifar_100 = b"".join(bytes([label, 99]) + bytes(3072) for label in (19, 4))
    info = {"version": 1, "name": "d", "digest": "0" * 64, "upload": "1" * 16, "train_set_size": 2,
            "test_set_size": 1, "train_chunks": 1, "test_chunks": 1, "chunk_samples": 2, "seed": 0,
            "dtype": "uint8", "shape": [1, 2, 2], "classes": 3, "targets": 0, "bytes": 12,
            "created_ms": 1, "mean": [0.5], "std": [0.25]}
    chunk = b"KMLC" + struct.pack("<IIIQQ", 1, 2, 48, 0, 0) + struct.pack("<2I2i", 1, 0, 2, 1) + bytes(8)
    f32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    checkpoint = CHECKPOINT.read_bytes()
    files = {
        "npy": {"u1": x, "i8": y, "f4": floats, "v2": npy(">f8", (1,), bytes(8), version=2),
                "fortran": npy("<f4", (2, 2), bytes(16), fortran=True), "object": npy("|O", (1,), b""),
                "scalar": npy("<f4", (), bytes(4))},
        "idx": {"u1": idx(8, (2, 2, 2), bytes(8)), "f8": idx(14, (1,), bytes(8)), "labels": idx(8, (3,), b"\0\1\2")},
        "spool": {"npy": x, "idx": idx(8, (2, 2), b"abcd"), "gz": gzip.compress(x, mtime=0), "cifar": cifar[:6146],
                  "cifar-100": cifar_100,
                  "npz": npz(zipfile.ZIP_STORED, x=x, y=y), "npz-deflated": npz(zipfile.ZIP_DEFLATED, x=x, y=y),
                  "pickle": b"\x80\x04\x95\0\0", "png": b"\x89PNG\r\n\x1a\n",
                  "two-gz": gzip.compress(x[:50], mtime=0) + gzip.compress(x[50:], mtime=0)},
        "safetensors": {"one": tensors({"a": f32}, bytes(8)), "none": tensors({}, b""),
                        "two": tensors({"__metadata__": {"k": "v"}, "a": f32,
                                        "b": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]}}, bytes(16)),
                        "overlap": tensors({"a": f32, "b": f32}, bytes(8)), "deep": tensors(b"[" * 1000, b""),
                        "pytorch": checkpoint, "cut": checkpoint[:-5]},
        "dataset": {"plain": json.dumps(info).encode() + b"\0" + chunk,
                    "extremes": json.dumps({**info, "min": info["mean"], "max": info["std"]}).encode() + b"\0" + chunk,
                    "regression": json.dumps({**info, "classes": 0, "targets": 2, "dtype": "float32"}).encode()},
        "ingest": {"u1": parts(x, y, x, y), "f4": parts(floats, y, floats, y),
                   "npz": parts(npz(zipfile.ZIP_DEFLATED, x_train=x, y_train=y, x_test=x, y_test=y)),
                   "cifar": parts(cifar, cifar, cifar, cifar),
                   "idx": parts(idx(8, (2, 2), b"abcd"), idx(8, (2,), b"\0\1"), idx(8, (1, 2), b"ab"), idx(8, (1,), b"\1"))},
    }
    for target, inputs in files.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (CORPUS / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
