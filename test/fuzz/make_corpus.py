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


def form(boundary, *fields, tail="--\r\n"):
    body = "".join("--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (boundary, head, text)
                   for head, text in fields)
    return ("multipart/form-data; boundary=%s\n%s--%s%s" % (boundary, body, boundary, tail)).encode()


def frames(*messages):
    texts = [m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages]
    return b"".join(struct.pack("<I", len(t)) + t for t in texts)


def elf(*symbols, machine=62):
    """A shared object's header, its three sections and its dynamic symbols: (name, section)."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in symbols)
    table, at = bytes(24), 1
    for name, section in symbols:
        table += struct.pack("<IBBHQQ", at, 0x12, 0, section, 0, 0)
        at += len(name) + 1
    names += bytes(-len(names) % 8)
    sections = bytes(64) + struct.pack("<IIQQQQIIQQ", 0, 11, 2, 0, 64, len(table), 2, 1, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 2, 0, 64 + len(table), len(names), 0, 0, 1, 0)
    return b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(table) + len(names),
                                                       0, 64, 0, 0, 64, 3, 0) + table + names + sections


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
    request = {"function_name": "f", "dataset": "d", "epochs": 3, "batch_size": 64, "lr": 0.1,
               "options": {"default_parallelism": 2, "static_parallelism": True, "k": -1, "merge": "server", "seed": 7,
                           "backoff_limit": 2, "gpu": {"memory": "2Gi", "threads": 50, "precision": "bf16"}}}
    record = {"id": "a", "request": request, "state": "queued", "reason": "NaNLoss", "message": "function 0",
              "created_ms": 1, "started_ms": 2, "finished_ms": 0, "order": 1, "parallelism": 2, "functions_max": 2,
              "epochs": 1, "reference_seconds": 1.5, "decided_epoch": 0, "generation": 1, "restarts": 0, "resumed": True,
              "verdict": "", "phase": "train", "epoch": 1, "round": 3, "retries": 1, "again_ms": 1700000004000,
              "gpus": [1, 1], "threads": 1, "trained": 2,
              "conditions": [{"type": "Retried", "status": True, "reason": "NaNLoss", "message": "retry 1 of 2", "since_ms": 2}]}
    kubeconfig = (b"apiVersion: v1\nkind: Config\ncurrent-context: one\nclusters:\n- name: c\n"
                  b"  cluster: {server: 'https://10.0.0.1:6443/', certificate-authority-data: SGVsbG8=}\n"
                  b"contexts:\n- name: one\n  context: {cluster: c, user: u, namespace: ml}\n"
                  b"users:\n- name: u\n  user: {client-certificate: pki/u.crt, client-key-data: SGVsbG8=, token: abc}\n")
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
        "multipart": {"files": form("xyz", ('name="x-train"; filename="x.npy"', "one"), ('name=lr', "--xy"), ('name="e"', "")),
                      "quoted": form('"x y"', ('name="c\\"d"; filename="a;b"', "-\r\n-x y-")),
                      "cut": form("xyz", ('name="a"', "abc"), tail="")},
        "http": {"plain": b"/datasets/mnist%20a?limit=5&after=a+b\napplication/json\nmultipart/form-data; boundary=x\n"
                          b"localhost:9090",
                 "logs": b"/tasks/a/logs?follow=true\ntext/*;q=0.5, text/event-stream, */*;q=0.1\ntext/plain\n[::1]:9090",
                 "broken": b"/a%2\n;q=,,\n;\n[127.0.0.1"},
        "wire": {"two": frames({"type": "hello", "abi": 1}, {"type": "task", "r": [0.1, -1, None, True, "\u00e4"]}),
                 "no-type": frames({"a": 1}), "cut": frames({"type": "a"})[:-1], "large": struct.pack("<I", 1 << 30),
                 "deep": frames(b'{"type": "a", "b": ' + b"[" * 40)},
        "record": {"request": json.dumps(request).encode(), "job": json.dumps(record).encode(),
                   "running": json.dumps({**record, "state": "running"}).encode(),
                   "again": json.dumps({**record, "again_ms": -1 << 63}).encode()},
        "kubeconfig": {"plain": kubeconfig, "alias": kubeconfig + b"x: &a [1]\ny: [*a, *a]\n",
                       "list-as-key": b"? [a]\n: b\n", "exec": kubeconfig.replace(b"token: abc", b"exec: {command: aws}")},
        "object": {"function": elf(("kubeml_function", 1), ("kml_linear", 0)), "undefined": elf(("kubeml_function", 1), ("f", 0)),
                   "other": elf(("kubeml_function", 1), machine=3)},
    }
    for target, inputs in files.items():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (CORPUS / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
