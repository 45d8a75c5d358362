#!/usr/bin/python3
"""The table of a job's options (common/contract/job_options.c) against the texts that describe it: openapi.yaml, the CRD
of TrainJobs, docs/reference/job-options.md, and the help and the flags of `kubeml train`."""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

import harness
from harness import ROOT, case

KUBEML = str(harness.BIN / "kubeml")
PAGE, SCRIPT = "docs/reference/job-options.md", "scripts/write-docs"
API = yaml.safe_load((ROOT / "docs/reference/openapi.yaml").read_text())["components"]["schemas"]
CRD = yaml.safe_load((ROOT / "charts/kubeml/crds/trainjobs.yaml").read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
# The API server does not bound these from above: the platform refuses what is too much.
UNBOUNDED_IN_CRD = {"k", "validateEvery", "lr"}


def output(*words):
    return subprocess.run([KUBEML, *words], capture_output=True, text=True, check=True).stdout


def table():
    return json.loads(output("__docs", "job-options"))


def options(rows, place):
    """The rows of an object of the request, without the objects in it and what is ignored."""
    return [row for row in rows if row["in"] == place and row["flags"]]


def expected(row):
    """What a schema must say of an option, but for its description and patterns."""
    kind = row["kind"]
    schema = {"type": "string" if kind in ("text", "word", "memory") else kind}
    if kind == "word":
        schema["enum"] = row["words"]
    if "minimum" in row:
        schema |= {"minimum": row["minimum"], "maximum": row["maximum"]}
    if "above" in row:
        schema |= {"minimum": row["above"], "exclusiveMinimum": True, "maximum": row["maximum"]}
    if "length" in row:
        schema["maxLength"] = row["length"]
    if "default" in row and not row["required"]:
        schema["default"] = row["default"]
    return schema


def compare(where, schema, wanted):
    keys = {"type", "enum", "minimum", "exclusiveMinimum", "maximum", "default"} | wanted.keys()
    told = {key: schema[key] for key in keys if key in schema}
    assert told == wanted, f"{where}: {told}, and the table of options says {wanted}"


def check_names(where, told, wanted):
    told, wanted = set(told), set(wanted)
    assert told == wanted, f"{where}: without {sorted(wanted - told)} of the table of options, and with {sorted(told - wanted)} that it has not"


def check_api(rows, schemas):
    schemas = copy.deepcopy(schemas)
    for place, name, others in (None, "TrainRequest", {"model_type", "options"}), ("options", "TrainOptions", {"gpu", "K"}), ("gpu", "GpuShare", set()):
        properties = schemas[name]["properties"]
        check_names(name, properties, {row["name"] for row in options(rows, place)} | others)
        for row in options(rows, place):
            schema = properties[row["name"]]
            schema = schemas[schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
            compare(f"{name}.{row['name']}", schema, expected(row))
            assert place is None or "description" in schema, f"{name}.{row['name']} has no description"
            if row["alias"]:
                compare(f"{name}.{row['alias']}", properties[row["alias"]], {key: value for key, value in expected(row).items() if key != "default"})
    check_names("TrainRequest.required", schemas["TrainRequest"]["required"], {row["name"] for row in rows if row["required"]})


def check_crd(rows, spec):
    objects = {row["name"]: row["spec"] for row in rows if row["kind"] == "object" and row["spec"]}
    tops = options(rows, None) + options(rows, "options")
    check_names("the CRD's spec", spec["properties"], {row["spec"] for row in tops} | set(objects.values()) | {"suspend"})
    check_names("the CRD's required", spec["required"], {row["spec"] for row in rows if row["required"]})
    for place, schema, name in [(None, spec, "spec"), ("options", spec, "spec")] + \
                               [(place, spec["properties"][name], name) for place, name in objects.items()]:
        for row in options(rows, place):
            field = row["spec"] or row["name"]
            assert field in schema["properties"], f"the CRD has no {name}.{field}"
            wanted = expected(row)
            if field in UNBOUNDED_IN_CRD:
                del wanted["maximum"]
            if row["unbuilt"]:
                wanted["enum"] = row["words"] + [row["unbuilt"]]
            compare(f"the CRD's {name}.{field}", schema["properties"][field], wanted)
            wide = row["kind"] == "integer" and row["maximum"] > 2**31 - 1
            assert not wide or schema["properties"][field].get("format") == "int64", f"the CRD's {name}.{field} is no int64"
            check_fixed(schema, field)


def check_fixed(schema, field):
    """That the CRD lets nobody change what is trained."""
    fixed = " ".join(rule["rule"] for rule in schema["x-kubernetes-validations"])
    named = re.findall(r"self\.(\w+)", fixed)
    assert field == "ttlSecondsAfterFinished" or field in named or f"__{field}__" in named, f"the CRD lets {field} be changed"


def refused(check, rows, what, *path, **change):
    """Changes the place of a description at that path, and looks whether the check tells."""
    what = copy.deepcopy(what)
    place = what
    for key in path:
        place = place[key]
    for key, value in change.items():
        if value is None:
            del place[key]
        else:
            place[key] = value
    try:
        check(rows, what)
    except AssertionError as e:
        return str(e)
    raise AssertionError(f"nobody notices {path}: {change}")


@case(platform=False)
def openapi_describes_every_option_as_the_table_has_it():
    rows = table()
    check_api(rows, API)
    trainoptions = "TrainOptions", "properties"
    assert "default" in refused(check_api, rows, API, *trainoptions, "k", default=1)
    assert "maximum" in refused(check_api, rows, API, *trainoptions, "priority", maximum=2000)
    assert "enum" in refused(check_api, rows, API, *trainoptions, "merge", enum=["database", "server"])
    assert "integer" in refused(check_api, rows, API, *trainoptions, "seed", type="number")
    assert "description" in refused(check_api, rows, API, *trainoptions, "device", description=None)
    assert "speed" in refused(check_api, rows, API, *trainoptions, speed={"type": "integer"})
    assert "on_loss" in refused(check_api, rows, API, *trainoptions, on_loss=None)
    assert "GpuShare.threads" in refused(check_api, rows, API, "GpuShare", "properties", "threads", minimum=0)
    assert "lr" in refused(check_api, rows, API, "TrainRequest", required=["function_name", "dataset", "epochs", "batch_size"])


@case(platform=False)
def the_crd_describes_every_option_as_the_table_has_it():
    rows = table()
    check_crd(rows, CRD)
    assert "onLoss" in refused(check_crd, rows, CRD, "properties", onLoss=None)
    assert "default" in refused(check_crd, rows, CRD, "properties", "optimizerState", default="reset")
    assert "enum" in refused(check_crd, rows, CRD, "properties", "mode", enum=["ps"])
    assert "int64" in refused(check_crd, rows, CRD, "properties", "seed", format="int32")
    assert "gpu.precision" in refused(check_crd, rows, CRD, "properties", "gpu", "properties", precision=None)
    rule = CRD["x-kubernetes-validations"][0]["rule"]
    assert "process" in refused(check_crd, rows, CRD, "x-kubernetes-validations", 0, rule=rule.replace("self.process", "self.p"))


@case(platform=False)
def every_flag_of_kubeml_train_is_of_the_table():
    rows = table()
    flags = [flag for row in rows for flag in row["flags"] + [row.get("shortcut", {}).get("flag")] if flag and flag.startswith("--")]
    told = [line.rstrip("=") for line in output("__options", "train").splitlines()]
    assert told == flags + ["--watch", "--help"], (told, flags)
    assert len(flags) == len(set(flags)) and all(row["about"] for row in rows if row["flags"]), flags


@case(platform=False)
def the_help_of_a_flag_ends_with_its_default():
    page, compared = output("train", "--help"), 0
    for row in table():
        said = re.search(rf"{row['flags'][-1]}(?: \S+)?\s+(\S.*)", page)[1] if row["flags"] else ""
        in_brackets = re.search(r"\(([^():,]+)[^()]*\)$", said.removesuffix(" (required)"))
        if in_brackets and "default" in row:
            assert in_brackets[1] == str(row["default"]), (said, row)
            compared += 1
    assert compared > 10, page


@case(platform=False)
def the_words_of_an_option_are_completed():
    for row in table():
        if row["kind"] == "word":
            assert output("__names", row["flags"][-1], "train").split() == row["words"], row


@case(platform=False)
def a_text_that_is_not_utf_8_is_refused_by_name():
    for flags, said in ([b"-f", b"\xff", b"-d", b"b"], "the names of the function and the dataset must be UTF-8"), \
                       ([b"-f", b"a", b"-d", b"b", b"--merge", b"\xff"], "--merge must be UTF-8"):
        run = subprocess.run([KUBEML, "train", *flags], capture_output=True, text=True)
        assert (run.returncode, run.stderr) == (1, f"kubeml: {said}\n"), run


@case(platform=False)
def the_page_has_the_table_of_the_code():
    """And one that has another is found, and written anew."""
    assert re.findall("^<!-- kubeml __docs (.*) -->$", (ROOT / PAGE).read_text(), re.M) == ["job-options"]
    said = subprocess.run([ROOT / SCRIPT, "--check", KUBEML], capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMP")) as folder:
        shutil.copytree(ROOT / "docs/reference", f"{folder}/docs/reference")
        (pathlib.Path(folder) / "scripts").mkdir()
        page, script = pathlib.Path(folder) / PAGE, shutil.copy(ROOT / SCRIPT, f"{folder}/scripts")
        whole = page.read_text()
        page.write_text(whole.replace("| `on_loss` |", "| `on_lost` |"))
        said = subprocess.run([script, "--check", KUBEML], capture_output=True, text=True)
        assert said.returncode == 1 and said.stdout.startswith(PAGE), said
        subprocess.run([script, KUBEML], check=True, capture_output=True)
        assert page.read_text() == whole


if __name__ == "__main__":
    harness.main(globals())
