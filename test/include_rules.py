#!/usr/bin/python3
"""Which folder may use which, and what breaks the table.

An include of ours is a path from the root ("common/base/err.h") or the bare name of a header beside the file. USES has a row
for every folder of the product: what its files may include and call. A call counts as much as an include: a prototype in a
header of the caller's, or an `extern`, would go around the table otherwise, so the objects' symbols are read as well.

The table itself has no cycle, and so neither have the folders: a folder is understood with those of its row alone.

Tests may include every header of the product, and those of TEST_FOLDERS by their bare names. No file of the product includes
or names a file of test/.

usage: include_rules.py [BUILD]    prints what breaks the rules, of the calls too where there is a build folder
"""
import graphlib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A folder, and what its files may use besides each other and common/base: folders, single headers, or all folders under one
# ("common/*"). A row for a file holds instead of its folder's.
USES = {
    "common/base": "",
    "common/kube": "",
    "common/net": "common/kube",
    "common/store": "",
    "common/store/mongo": "common/store",
    "common/formats": "common/store",
    "common/dataset": "common/formats common/store",
    "common/modelstore": "",
    "common/contract": "",
    "common/compile": "common/net",
    "common/round": "common/contract",

    "kernels": "common/contract/limits.h",
    "kernels/cpu": "kernels common/contract/limits.h",
    "kernels/cuda": "kernels common/contract/limits.h",
    "kernels/reference": "kernels common/contract/limits.h",
    "kernels/zoo": "kernels common/contract/limits.h",

    "function-runtime/include": "",
    "function-runtime/examples": "function-runtime/include",
    "function-runtime/base": "kernels kernels/zoo common/*",
    "function-runtime/sandbox": "function-runtime/base kernels kernels/zoo common/*",
    "function-runtime/model": "function-runtime/include function-runtime/base kernels kernels/zoo common/*",
    "function-runtime/train": "function-runtime/model function-runtime/base kernels kernels/zoo common/*",
    "function-runtime/member": "function-runtime/train function-runtime/model function-runtime/sandbox function-runtime/base "
                               "kernels kernels/zoo common/*",
    "function-runtime/run": "function-runtime/train function-runtime/model function-runtime/sandbox function-runtime/base "
                            "function-runtime/include kernels kernels/zoo common/*",
    "function-runtime/shape_check": "function-runtime/train function-runtime/model function-runtime/sandbox function-runtime/base "
                            "kernels kernels/zoo common/*",
    "function-runtime/serve": "function-runtime/train function-runtime/model function-runtime/sandbox function-runtime/base "
                              "kernels kernels/zoo common/*",
    "function-runtime": "function-runtime/* kernels kernels/zoo common/*",

    "ps/conn": "common/*",
    "ps/redis": "ps/conn common/*",
    "ps/storage": "ps/conn common/*",
    "ps/job": "ps/conn ps/redis ps/storage common/*",
    "ps/module": "common/*",
    "ps": "ps/* common/*",

    "controller/controller.h": "common/*",
    "controller/job": "common/contract",
    "controller/kube": "common/*",
    "controller/ha": "controller/kube controller/controller.h common/*",
    "controller/cluster": "controller/kube common/*",
    "controller/functions": "controller/controller.h common/*",
    "controller/jobs": "controller/job controller/functions controller/cluster controller/ha controller/controller.h common/*",
    "controller/operator": "controller/jobs controller/functions controller/kube controller/controller.h common/*",
    "controller/api": "controller/jobs controller/functions controller/ha controller/controller.h common/*",
    "controller": "controller/* common/*",

    "cli": "common/*",
    "builder": "common/*",
}
# A call within one of these is free: a table there names the backends, whose files call it.
ONE_IN_CALLS = "kernels"
# Of the C library. kubeml-function has its own (process_exit.c); every other program means the library's.
LIBRARY_NAMES = {"_exit", "_Exit"}
TEST_FOLDERS = ("test/support", "test/sim", "test/cuda")
# Written by the Makefile, which says which objects see them.
GENERATED = {"backend_seam.h", "cuda_kernels_version.h"}
SDK = "function-runtime/include/kubeml.h"
PRODUCT = tuple(sorted({row.split("/")[0] for row in USES}))
SOURCES = {".c", ".h", ".cc", ".cu", ".cuh"}


def folder_of(path):
    return path.rpartition("/")[0]


def read_tree():
    """The text of every source of the product and of the tests, by its path from the root."""
    return {str(path.relative_to(ROOT)): path.read_text() for top in (*PRODUCT, "test") for path in sorted((ROOT / top).rglob("*"))
            if path.suffix in SOURCES}


def includes_of(text):
    """(line, name) of each include of ours."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r'\s*#\s*include\s+(?:"([^"]+)"|<(kubeml\.h)>)', line):
            yield number, found[1] or found[2]


def resolve(path, name, files):
    """The file that an include names, or None."""
    if name == "kubeml.h":
        return SDK
    beside = f"{folder_of(path)}/{name}"
    if "/" not in name and beside in files:
        return beside
    if "/" in name and name in files and ".." not in name:
        return name
    if path.startswith("test/"):
        return next((f"{folder}/{name}" for folder in TEST_FOLDERS if f"{folder}/{name}" in files), None)
    return None


def row_of(path):
    return path if path in USES else folder_of(path)


def may_use(user, used):
    """Whether the table lets one file use another."""
    row = row_of(user)
    if row not in USES:
        return False
    if row != user and folder_of(used) == row or folder_of(used) == "common/base":
        return True
    return any(word in (used, row_of(used)) or word.endswith("/*") and used.startswith(word[:-1]) for word in USES[row].split())


def included_wrongly(files):
    """"file:line: why" of every include that breaks the rules."""
    for path, text in files.items():
        for line, name in includes_of(text):
            used = resolve(path, name, files)
            if used is None and name not in GENERATED:
                yield f'{path}:{line}: "{name}" is neither a path from the root nor the name of a header beside it'
            elif used and not path.startswith("test/") and not may_use(path, used):
                yield f"{path}:{line}: {row_of(path)} may not use {used}"


def names_of_tests(files):
    """Where a file of the product names one of test/, in a comment as well."""
    for path, text in files.items():
        for line, words in enumerate(text.splitlines(), 1):
            for name in re.findall(r"\btest/[\w./-]*\w", words) if not path.startswith("test/") else ():
                if (ROOT / name).is_file() or name in files:
                    yield f"{path}:{line}: names {name}"


def named_alike(files):
    """Two headers of the product with one name: which one an include means would depend on who includes it."""
    there = {}
    for path in files:
        if path.endswith((".h", ".cuh")) and not path.startswith("test/"):
            there.setdefault(path.rpartition("/")[2], []).append(path)
    return [f"{second}:1: has the name of {first}" for first, *others in there.values() for second in others]


def cycle_in(graph, what):
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as found:
        return [f"{what} go in a circle: {' -> '.join(found.args[1])}"]
    return []


def rows_under(word, uses):
    """The rows that a word of the table stands for."""
    return [row for row in uses if row.startswith(word[:-1])] if word.endswith("/*") else [word] if word in uses else []


def cycles(files, uses=USES):
    """Of the table's rows, and of the headers."""
    table = {row: {used for word in words.split() for used in rows_under(word, uses) if used != row} for row, words in uses.items()}
    headers = {path: {resolve(path, name, files) for _, name in includes_of(text)} - {None}
               for path, text in files.items() if path.endswith((".h", ".cuh"))}
    return cycle_in(table, "the table's rows") + cycle_in(headers, "headers")


def breaks(files):
    """Everything in the sources that breaks the rules, a line each."""
    return [*included_wrongly(files), *names_of_tests(files), *named_alike(files), *cycles(files)]


# ---- calls --------------------------------------------------------------------------------------

def objects_of(build, files):
    """The objects of the product, by their sources. One whose source is gone is no part of it."""
    there = {source: build / "obj" / (source[:-2] + ".o") for source in files
             if source.endswith(".c") and not source.startswith("test/")}
    return {source: path for source, path in there.items() if path.exists()}


def symbols(objects):
    """(source, name, letter of its kind) of everything global that objects define or want, as nm tells it."""
    sources = {str(path): source for source, path in objects.items()}
    listing = subprocess.run(["nm", "-A", "-g", "-P", *sources], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        path, name, kind = line.split()[:3]
        yield sources[path.rstrip(":")], name, kind


def together(one, other):
    return all(path.startswith(ONE_IN_CALLS + "/") for path in (one, other))


def called_wrongly(found):
    """"file: why" of every use of another folder's function or variable that the table has no arrow for."""
    found = list(found)
    defined = {}
    for source, name, kind in found:
        if kind not in "Uwv" and name not in LIBRARY_NAMES:
            defined.setdefault(name, []).append(source)
    for source, name, kind in found:
        there = defined.get(name, []) if kind in "Uw" else []
        if there and not any(may_use(source, used) or together(source, used) for used in there):
            yield f"{source}: {row_of(source)} may not use {name} of {there[0]}"


def calls_that_break(build, files):
    return list(called_wrongly(symbols(objects_of(build, files))))


def main():
    files = read_tree()
    said = breaks(files) + (calls_that_break(pathlib.Path(sys.argv[1]), files) if sys.argv[1:] else [])
    print(*said, sep="\n")
    sys.exit(1 if said else 0)


if __name__ == "__main__":
    main()
