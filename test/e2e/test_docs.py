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

REFERENCE = ROOT / "docs/reference"
SCHEMAS = yaml.safe_load((ROOT / "docs/reference/openapi.yaml").read_text())["components"]["schemas"]


def cells(lines):
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def tables(page, heading):
    """The rows of each table under a heading of a page of docs/reference, up to the next heading of that level or above."""
    level = heading.split()[0]
    section = re.split(rf"\n#{{1,{len(level)}}} ", (REFERENCE / page).read_text().split(f"\n{heading}\n")[1])[0]
    return [cells(table.splitlines()) for table in re.findall(r"^\|(?:---\|)+\n((?:\|.*\n)*)", section, re.M)]


def rows(page, heading):
    """The cells of each row of the first table under a heading."""
    return tables(page, heading)[0]


def codes(cell):
    return re.findall("`([^`]+)`", cell)


def table_of(source, name):
    """What stands between the braces of a table in C."""
    return re.search(rf"\b{name}\[\w*\] = \{{(.*?)\n\}};", (ROOT / source).read_text(), re.S)[1]


@case(platform=False)
def the_status_of_every_error_is_told():
    of_code = re.findall(r'\[ERR_\w+\] = \{"([a-z-]+)", (\d+), (true|false)\}', table_of("common/base/err.c", "table"))
    told = [(codes(row[0])[0], row[1], {"yes": "true", "no": "false"}[row[2]]) for row in rows("errors.md", "## Codes")]
    assert sorted(told) == sorted(set(of_code) - {("none", "200", "false")}), (told, of_code)
    assert {reason for reason, *_ in told} == set(SCHEMAS["Problem"]["properties"]["reason"]["enum"])


def sources(*folders):
    """The product's files in C below these folders, without comments."""
    return "\n".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
                     for folder in folders for path in sorted((ROOT / folder).rglob("*.[ch]")))


# Calls that give a job's end, or what it waits for, a reason; the reason is the last text in them.
OF_A_JOB = (r'\b(?:job_fail|round_fail)\([^;"]*"([A-Z]\w+)"', r'\bround_finish\([^;"]*"([A-Z]\w+)"', r'\bjob_end\([^;"]*"failed", "([A-Z]\w+)"',
            r'\b(?:job_end|give_verdict)\(m, j, JOB_\w+, "([A-Z]\w+)"', r'\bset_reason\([^;"]*"([A-Z]\w+)"', r'\bTRAINER_REASON_BYTES, "([A-Z]\w+)"',
            r'\bmember_tell_failed\(m, "([A-Z]\w+)"', r'\bg->reason, "([A-Z]\w+)"', r'\bout->reason, "([A-Z]\w+)"', r'\bset\(out, "([A-Z]\w+)"',
            r'\breason = "([A-Z]\w+)"', r'\bmember_lose\([^;"]*"([A-Z]\w+)"', r'\bkube_set_words\(&p->seen, "([A-Z]\w+)"', r'\bbecause\(out, "([A-Z]\w+)"')


NO_REASONS = {"PodNotStarted"}  # which a job tells as PodFailed


@case(platform=False)
def every_reason_of_a_job_is_told():
    """Each that the code gives has a row, where no other page has its table: Exact's are in internals/ps.md."""
    text = sources("controller", "ps", "common/round", "common/contract", "function-runtime")
    given = {reason for call in OF_A_JOB for reason in re.findall(call, text)}
    assert {"ShapeMismatch", "FunctionMissing", "NoFreeSlot", "Stalled", "GoalReached"} <= given, given
    told = {code for section in ("## Reasons of a job", "## Code that does not compile")
            for table in tables("errors.md", section) for row in table for cell in row for code in codes(cell)}
    assert given - NO_REASONS <= told, given - NO_REASONS - told


def families():
    """Of /metrics: name, type, labels."""
    kinds = re.findall(r'METRIC_(\w+),\s*"(kubeml_\w+)",\s*(?:"[^"]*"\s*)+,\s*"([^"]*)"', (ROOT / "controller/metrics_controller.c").read_text())
    own = re.findall(r"# TYPE (kubeml_\w+) (\w+)", (ROOT / "common/net/metrics.c").read_text())
    assert len(kinds) > 20 and own, (kinds, own)
    return {name: (kind.lower(), labels.split(",") if labels else []) for kind, name, labels in kinds} | {name: (kind, []) for name, kind in own}


@case(platform=False)
def every_family_of_metrics_is_told():
    told = {codes(row[0])[0]: (row[1], codes(row[2])) for heading in ("## Jobs", "## Functions", "## The platform")
            for row in rows("metrics.md", heading)}
    assert told == families(), (told, families())


def constants(*headers):
    """Numbers that headers give names to; an expression may use those before it."""
    known = {}
    for header in headers:
        text = re.sub(r"/\*.*?\*/", "", (ROOT / header).read_text(), flags=re.S)
        for name, value in re.findall(r"\b([A-Z][A-Z0-9_]+)\s*=\s*([^,}]+)", text) + re.findall(r"#define ([A-Z][A-Z0-9_]+) +(.+)", text):
            value = re.sub(r"\((?:u?int\d+_t|size_t)\)|UINT64_C|\n", "", value)
            if re.fullmatch(r"[\w\s()+*<-]+", value) and set(re.findall(r"[A-Z]\w+", value)) <= known.keys():
                known[name] = eval(value, {}, known)
    return known


UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KiB/s": 1 << 10, "s": 1000, "h": 3600 * 1000, "epochs": 1, "names": 1, "characters": 1,
         "pixels": 1}
HEADERS = ("common/contract/limits.h", "common/contract/request.h", "common/contract/tensor_filter.h", "common/contract/gpu.h", "common/net/http_server.h",
           "common/net/multipart.h", "common/net/tokens.h", "common/net/metrics.h", "common/base/name.h", "common/compile/builder.h",
           "common/compile/builder_remote.h", "common/compile/shape_check.h", "common/formats/safetensors.h", "common/store/store.h",
           "common/store/list_page.h", "common/dataset/dataset.h", "common/modelstore/layout.h", "common/modelstore/modelstore.h",
           "common/modelstore/redis_link.h", "common/modelstore/modelstore_redis.h", "controller/controller.h", "controller/jobs/job_manager.h",
           "controller/job/job.h", "controller/api/forward.h", "controller/functions/build_failure.h", "controller/functions/code_blob.h",
           "controller/functions/upload.h", "controller/cluster/cluster_local.h", "controller/cluster/cluster_kubernetes.h",
           "controller/kube/kube_watch.h", "controller/kube/kube_client.h", "common/kube/kube_config.h", "common/kube/kube_exec.h",
           "function-runtime/serve/serve.h", "cli/cli.h", "common/net/http_client.h")
# A row of limits.md, by how it begins, and the constant that is its first number; "-1": a NUL counts in that.
LIMITS = """
URI: HTTP_URI_BYTES_MAX / query parameters: HTTP_QUERIES_MAX / segments of a path: HTTP_SEGMENTS_MAX / JSON body: HTTP_JSON_BYTES_MAX
body of `/infer`: LIMITS_INFER_BYTES_MAX / upload of a function: CONTROLLER_CODE_BYTES_MAX / upload of a data set: CONTROLLER_UPLOAD_BYTES_MAX
upload of a model: CONTROLLER_MODEL_BYTES_MAX / nested levels: HTTP_JSON_DEPTH_MAX / parts of a multipart: MULTIPART_PARTS_MAX
headers of a part: MULTIPART_HEADER_BYTES_MAX / boundary: MULTIPART_BOUNDARY_MAX / name of a data set: NAME_BYTES -1 / tokens in: TOKENS_MAX
a token |: TOKENS_TOKEN_BYTES_MAX / a token file: TOKENS_TEXT_BYTES_MAX / bodies in memory: HTTP_BODIES_BYTES_MAX
entries of a page: LIST_LIMIT / JSON of a page: LIST_BYTES / jobs that wait: JOB_COUNT_MAX / functions of a job: REQUEST_PARALLELISM_MAX
functions that [share: LIMITS_SHARED_MAX / samples of a batch: LIMITS_BATCH_MAX / names in `init_without`: TENSOR_FILTER_MAX
threads of a function: LIMITS_THREADS_MAX / GPUs that: GPU_COUNT_MAX / pods of the local: CLUSTER_LOCAL_PODS_MAX
versions of a function: CONTROLLER_VERSIONS_MAX / text of the compiler: BUILDER_TEXT_BYTES_MAX / messages of the compiler: BUILDER_DIAGNOSTICS_MAX
last uploads: BUILD_FAILURES_MAX / messages kept: BUILD_FAILURE_SAID_BYTES / code that no: CODE_BLOB_KEPT_MS / asking code: SHAPE_CHECK_MS
request to kubeml-builder: BUILDER_REQUEST_BYTES_MAX / response of kubeml-builder: BUILDER_ANSWER_MS / a builder that is away: BUILDER_AWAY_MS
samples of a [chunk: DATASET_CHUNK_SAMPLES / samples' bytes of a chunk: DATASET_CHUNK_BYTES / uploaded model: UPLOAD_KEPT_MS
header of a safetensors: SAFETENSORS_HEADER_BYTES_MAX / tensors of a safetensors: SAFETENSORS_TENSORS_MAX / dimensions of a tensor: SAFETENSORS_DIMS_MAX
name of a tensor: SAFETENSORS_NAME_BYTES_MAX / outputs of a model: LIMITS_OUTPUTS_MAX / name of a model of the zoo: LIMITS_MODEL_TEXT_BYTES -1
`crop`: LIMITS_CROP_MAX / samples of a request: LIMITS_INFER_SAMPLES_MAX / runtimes of all: JOB_MANAGER_SERVERS_MAX
a runtime without: JOB_MANAGER_SERVER_IDLE_MS / log of a runtime: SERVE_LOG_BYTES_MAX / open streams: JOB_MANAGER_FOLLOWERS_MAX
a stream of which: HTTP_STREAM_STUCK_MS / events of ended jobs: JOB_MANAGER_PASTS_EPOCHS_MAX / a stream of events: JOB_MANAGER_STREAM_PING_MS
log of a process: CONTROLLER_LOG_BYTES_MAX / log of a pod: CLUSTER_KUBERNETES_LOG_BYTES / log of a job, all: JOB_MANAGER_LOG_TAILS_MAX
log of a job with: JOB_MANAGER_LOG_BYTES_MAX / logs on their way: JOB_MANAGER_LOGS_HELD_MAX / requests that wait for the leader: FORWARD_WAITING_MAX
streams |: FORWARD_STREAMS_MAX / a response |: FORWARD_BYTES_MAX / responses over: FORWARD_HELD_MAX / the leader's response: FORWARD_ANSWER_MS
JSON file of: LIMITS_INFER_BYTES_MAX / repetitions of an option: CLI_LIST_MAX / a response of the API: HTTP_REPLY_BYTES_MAX
connecting: HTTP_CONNECT_MS / series of a family: METRICS_SERIES_MAX / tensors of a model with: LAYOUT_ENTRIES_MAX
description of these: LAYOUT_TEXT_BYTES_MAX / name of such: LAYOUT_NAME_BYTES -1 / functions of a model: MODELSTORE_FUNCTIONS_MAX
slots of a shared: MODELSTORE_SLOTS_MAX / reply of Redis: REDIS_BULK_BYTES_MAX / one part of a model: REMOTE_CHUNK_BYTES
record: STORE_RECORD_BYTES_MAX / chunk: STORE_CHUNK_BYTES_MAX / key of a record: STORE_KEY_BYTES -1 / locator: STORE_LOCATOR_BYTES -1
pods of a platform: CLUSTER_KUBERNETES_PODS_MAX / ended pods: CLUSTER_KUBERNETES_ENDED_MAX / objects of a kind: KUBE_WATCH_OBJECTS_MAX
response of the API server: KUBE_REPLY_BYTES_MAX / kubeconfig: KUBE_FILE_BYTES_MAX / token of a kubeconfig: KUBE_TOKEN_BYTES_MAX
output of a kubeconfig: KUBE_EXEC_REPLY_BYTES_MAX
"""


def quantity(text):
    number, unit = re.match(r"([\d,]*\d) ?(KiB/s|[KMG]iB|s\b|h\b|\w*)", text).groups()
    return int(number.replace(",", "")) * UNITS[unit]


@case(platform=False)
def limits_are_those_of_the_headers():
    known = constants(*HEADERS)
    page = [line[2:] for line in (REFERENCE / "limits.md").read_text().splitlines() if line.startswith("| ")]
    for limit in re.split(r" / |\n", LIMITS.strip()):
        begin, name, less = re.fullmatch(r"(.*): (\w+)( -1)?", limit).groups()
        found = [line for line in page if line.startswith(begin)]
        assert len(found) == 1, (limit, found)
        told = quantity(found[0].split("|")[1].strip())
        assert told == known[name] - bool(less), (found, name, known[name])


@case(platform=False)
def the_page_of_commands_is_made_from_their_table():
    """What --help says of all commands is there too. That the made part is the code's, test_job_options.py asks."""
    page = (REFERENCE / "cli.md").read_text()
    assert re.findall("^<!-- kubeml __docs (.*) -->$", page, re.M) == ["commands"]
    kubeml = str(harness.BIN / "kubeml")
    rows = json.loads(subprocess.run([kubeml, "__docs", "commands"], capture_output=True, check=True).stdout)
    for row in rows:
        told = subprocess.run([kubeml, "__options", *row["name"].split()], capture_output=True, text=True, check=True).stdout.split()
        options = ["--" + o["name"] + ("=" if "value" in o else "") for o in row["options"]]
        assert row["name"] == "run" or options + ["--help"] == told, (row, told)
        assert f"\n### kubeml {row['name']}\n" in page, row
    help_text = subprocess.run([kubeml, "--help"], capture_output=True, text=True, check=True).stdout
    for word in re.findall(r"^  (--\w+|KUBEML_\w+)", help_text, re.M):
        assert f"`{word}" in page, word
    assert subprocess.run([kubeml, "__docs", "nothing"], capture_output=True).returncode == 2


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
