#!/usr/bin/python3
"""The pages: their tables, against the code that decides what stands in them, and their links."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.parse

import yaml

import harness
from harness import ROOT, case

API = (ROOT / "docs/reference/api.md").read_text()
SCHEMAS = yaml.safe_load((ROOT / "docs/reference/openapi.yaml").read_text())["components"]["schemas"]


def rows(heading):
    """The cells of each row of the first table under a heading of docs/reference/api.md."""
    section = re.split("\n##+ ", API.split(f"\n## {heading}\n")[1])[0]
    lines = section[section.index("\n|---"):].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def codes(cell):
    return re.findall("`([^`]+)`", cell)


def table_of(source, name):
    """What stands between the braces of a table in C."""
    return re.search(rf"\b{name}\[\w*\] = \{{(.*?)\n\}};", (ROOT / source).read_text(), re.S)[1]


@case(platform=False)
def the_status_of_every_error_is_told():
    of_code = re.findall(r'\[ERR_\w+\] = \{"([a-z-]+)", (\d+), (true|false)\}', table_of("common/base/err.c", "table"))
    told = [(codes(row[0])[0], row[1], {"yes": "true", "no": "false"}[row[2]]) for row in rows("Errors")]
    assert sorted(told) == sorted(set(of_code) - {("none", "200", "false")}), (told, of_code)
    assert {reason for reason, *_ in told} == set(SCHEMAS["Problem"]["properties"]["reason"]["enum"])


@case(platform=False)
def the_manifest_with_images_of_a_registry():
    """As docs/guides/kubernetes-install.md and the file itself say it."""
    head = re.split("^---", (ROOT / "manifests/kubeml.yaml").read_text(), flags=re.M)[0]
    command, = re.findall("^    (sed .*) \\| kubectl apply ", (ROOT / "docs/guides/kubernetes-install.md").read_text(), re.M)
    assert command in head, head
    changed = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    changed = "\n".join(line for line in changed.splitlines() if not line.startswith("#"))
    images = set(re.findall(r"registry\.example/kubeml/(kubeml-[a-z-]+):", changed))
    assert "localhost/" not in changed and {"kubeml-controller", "kubeml-builder", "kubeml-ps", "kubeml-function-cpu"} <= images, images


def outside_code(text):
    """A page without its code, which may hold anything."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^ *(```|~~~).*?^ *\1", "", text, flags=re.S | re.M))


def text_of(page):
    """A page's Markdown; of a notebook that of its cells."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "\n\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
    return text


def anchors(page):
    """Those that GitHub makes of a page's headings: lower case, without punctuation, hyphens for spaces; a number for the
    second of one name."""
    headings = re.findall(r"^#{1,6} +(.+?) *#*$", re.sub(r"^ *(```|~~~).*?^ *\1", "", text_of(page), flags=re.S | re.M), re.M)
    found, seen = set(), {}
    for heading in headings:
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen.get(name) else name)
        seen[name] = seen.get(name, 0) + 1
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', text_of(page)))


def broken_links(root, pages):
    """The relative links that lead nowhere, each with its page."""
    broken = []
    for page in pages:
        text = outside_code(text_of(page))
        targets = re.findall(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)", text) + re.findall(r"^\[[^\]]+\]: +(\S+)", text, re.M)
        for target in targets:
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            to = pathlib.Path(os.path.normpath(page.parent / path)) if path else page
            if not to.exists() or not to.is_relative_to(root):
                broken.append(f"{page.relative_to(root)}: {target}: there is no such file")
            elif anchor and (to.suffix not in (".md", ".ipynb") or anchor not in anchors(to)):
                broken.append(f"{page.relative_to(root)}: {target}: there is no such heading")
    return broken


@case(platform=False)
def every_link_of_the_pages_leads_somewhere():
    pages = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")])
    broken = broken_links(ROOT, pages)
    assert not broken, "\n" + "\n".join(broken)


@case(platform=False)
def a_link_that_leads_nowhere_is_found():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    (folder / "docs").mkdir()
    (folder / "README.md").write_text("# One\n[a](docs/b.md#what-it-s-not) [b](docs/c.md) [c](#one) [d](#two) [e](../out.md)\n"
                                      "![f](docs/no.png) [two\nlines](docs/b.md#the-a-job-part-1) [g](https://example.org/no#no)\n"
                                      "`[h](no.md)`\n```\n[i](no.md)\n# Two\n```\n[j](docs/b.md#x)\n")
    (folder / "docs/b.md").write_text("# What it's: not!\n## The `a_job` part\n## The [a-job](../README.md) part\n## The a-job part\n")
    (folder.parent / "out.md").touch()
    broken = broken_links(folder, [folder / "README.md", folder / "docs/b.md"])
    assert [line.split(": ")[1] for line in broken] == \
        ["docs/b.md#what-it-s-not", "docs/c.md", "#two", "../out.md", "docs/no.png", "docs/b.md#x"], broken


if __name__ == "__main__":
    harness.main(globals())
