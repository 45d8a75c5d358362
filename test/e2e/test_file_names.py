#!/usr/bin/python3
"""A page or a comment that names a file of this tree names one that is there."""
import re

import harness
from harness import ROOT, case

PATH = re.compile(r"(?<![\w./*$<-])((?:common|controller|ps|function-runtime|kernels|cli|builder|test|scripts|charts|manifests|docs)"
                  r"/[\w./-]*\w\.(?:c|h|cu|cuh|cc|py|mk|md|sh|ya?ml))(?![\w/*-])")
BARE = re.compile(r"(?<![\w./*$<>-])(\w[\w-]{2,}\.(?:c|h|cu|cuh))(?![\w.(/-])")
COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.S)
# What a build makes, what is a word of the API or a user's own, and what stands for several files.
MADE = {"backend_seam.h", "cuda_kernels_version.h"}
OTHERS = {"redismodule.h", "sysexits.h", "nvml.h", "crash.c", "lenet.py", "model.c", "user.c", "code.c", "FILE.c", "MORE.c", "MORE.h", "file.c",
          "FILE.h", "kernels_SET.c", "xxhash.h", "shape.c", "shape.h", "test/unit/test_x.c", "test_x_theme.c", "x_fixture.h"}
FOLDERS = ("common", "controller", "ps", "function-runtime", "kernels", "cli", "builder", "test", "scripts", "charts", "manifests", "docs")


def tree():
    return ["README.md"] + [str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]


def comments(text):
    return "\n".join(m[0] for m in COMMENT.finditer(text) if m[0][0] == "/")


def missing(name, text, files):
    """The files that a page or the comments of a source name and that are not there."""
    bases = {path.rsplit("/", 1)[-1] for path in files}
    words = text if name.endswith(".md") else comments(text)
    said = {path for path in PATH.findall(words) if path not in files and not any(f.endswith("/" + path) for f in files)}
    return sorted(said - OTHERS) + sorted({base for base in BARE.findall(words) if base not in bases | MADE | OTHERS})


@case(platform=False)
def every_file_that_is_named_is_there():
    files = tree()
    wrong = {name: found for name in files
             if name.endswith((".md", ".c", ".h", ".cu", ".cuh", ".cc")) and not name.startswith("test/fuzz/corpus/")
             and name != "docs/contributing/style.md"  # its examples are of earlier pages
             and (found := missing(name, (ROOT / name).read_text(), set(files)))}
    assert not wrong, "\n".join(f"{name}: {', '.join(found)}" for name, found in wrong.items())


@case(platform=False)
def a_file_that_is_gone_is_found():
    files = {"common/base/err.h", "docs/concepts.md"}
    assert missing("a.c", "/* see err.h and common/base/err.h */ int x = a.gone;", files) == []
    assert missing("a.c", "/* see common/err.h */", files) == ["common/err.h"]
    assert missing("a.c", "// as deal.h has them", files) == ["deal.h"]
    assert missing("a.md", "`common/gone.c` and docs/concepts.md", files) == ["common/gone.c"]


if __name__ == "__main__":
    harness.main(globals())
