#!/usr/bin/python3
"""Tables of the pages, against the code that decides what stands in them."""
import re
import subprocess

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


def fields(name):
    return set(re.findall(r'\.name = "(\w+)"', table_of("common/contract/request.c", name)))


@case(platform=False)
def every_option_of_a_job_is_told():
    told = {codes(row[0])[0]: row for row in rows("Options of a job")}
    gpu = {f"gpu.{name}" for name in fields("gpu_fields")}
    options = fields("option_fields") - {"gpu"} | gpu
    assert set(told) == options | fields("top_fields") - {"model_type", "options"}, set(told) ^ options

    flags = subprocess.run([str(harness.BIN / "kubeml"), "__options", "train"], capture_output=True, text=True, check=True).stdout
    flags = {line.rstrip("=") for line in flags.splitlines()} - {"--watch", "--help"}
    assert {code for row in told.values() for code in codes(row[1]) if code.startswith("--")} == flags, flags

    specs = dict(re.findall(r'\{"(\w+)", "(\w+)", \w+\}', table_of("controller/kube/kube_trainjob.c", "names")))
    specs = {request: spec for spec, request in specs.items() if spec != "gpu"} | {name: name for name in gpu}
    assert {field: codes(row[2])[0] for field, row in told.items()} == specs, specs

    described = {name: schema for name, schema in SCHEMAS["TrainOptions"]["properties"].items() if name != "gpu"}
    described |= {f"gpu.{name}": schema for name, schema in SCHEMAS["GpuShare"]["properties"].items()}
    assert set(described) == options | {"K"} and all("description" in schema for schema in described.values()), described


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


if __name__ == "__main__":
    harness.main(globals())
