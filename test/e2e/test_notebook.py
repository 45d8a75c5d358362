#!/usr/bin/python3
"""docs/notebooks/mnist.ipynb, executed against a running platform: no cell fails, the curves are there."""
import json
import os
import pathlib
import subprocess
import tempfile

import nbclient
import nbformat

import harness
from harness import case

NOTEBOOK = harness.ROOT / "docs/notebooks/mnist.ipynb"


def text_of(cell):
    """What a cell printed and gave back."""
    return "".join(o.get("text", "") + str(o.get("data", {}).get("text/plain", "")) for o in cell.get("outputs", []))


def images_of(cell):
    return [o["data"]["image/png"] for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]


@case(limit=300)
def the_notebook(p):
    folder = harness.mnist()
    book = nbformat.read(NOTEBOOK, as_version=4)
    os.environ.update({"KUBEML_URL": p.url, "EPOCHS": "2", "DATA": str(folder), "PYDEVD_DISABLE_FILE_VALIDATION": "1",
                       "MPLCONFIGDIR": str(p.folder / "matplotlib"), "IPYTHONDIR": str(p.folder / "ipython")})
    os.environ.pop("MPLBACKEND", None)  # the kernel draws into the notebook
    # A cell that fails raises CellExecutionError with the cell's traceback.
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3",
                            resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell in code:
        assert cell.execution_count and not [o for o in cell.outputs if o.output_type == "error"], cell
    told = "\n".join(map(text_of, code))
    assert "epoch 1: train loss" in told and "epoch 2: train loss" in told and "succeeded" in told, told
    figures = [image for cell in code for image in images_of(cell)]
    assert len(figures) == 2 and all(len(image) > 4000 for image in figures), [len(image) for image in figures]
    labels, predictions = (next(line for line in told.splitlines() if line.startswith(word)).split("[")[1]
                           for word in ("labels", "predictions"))
    right = sum(a == b for a, b in zip(labels.strip("]").split(","), predictions.strip("]").split(",")))
    assert right >= 8, (labels, predictions)
    assert "conv1.weight" in told, told
    history = p.get("/history")
    assert len(history) == 1 and len(history[0]["data"]["accuracy"]) == 2, history
    keep = os.environ.get("KEEP_NOTEBOOK")
    if keep:
        nbformat.write(book, pathlib.Path(keep))


@case(platform=False)
def the_curves_of_a_history():
    """scripts/plot-history: of a job on targets the loss alone; without an epoch it says so."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
    task = {"function_name": "f", "dataset": "d", "batch_size": 32, "lr": 0.1, "options": {"goal_accuracy": 97}}

    def plot(accuracy):
        series = {"train_loss": [0.5 for _ in accuracy], "validation_loss": [0.4 for _ in accuracy], "accuracy": accuracy,
                  "epoch_duration": [1.5 for _ in accuracy], "parallelism": [4 for _ in accuracy]}
        (folder / "history.json").write_text(json.dumps({"task": task, "data": series}))
        return subprocess.run([str(harness.ROOT / "scripts/plot-history"), "history.json", "out.png"], cwd=folder, text=True,
                              capture_output=True, timeout=120, env={**os.environ, "MPLCONFIGDIR": str(folder)})
    widths = []
    for accuracy in ([None, 96.5], [None, None]):
        done = plot(accuracy)
        assert done.returncode == 0, done.stderr
        widths.append(int.from_bytes((folder / "out.png").read_bytes()[16:20], "big"))
    assert widths[1] < widths[0], widths
    done = plot([])
    assert done.returncode == 1 and done.stderr == "history.json: no epoch has ended, and there is nothing to draw\n", done.stderr


@case(platform=False)
def what_it_needs():
    """requests and matplotlib, nothing else from outside; no output is kept in the tree."""
    allowed = {"json", "os", "subprocess", "time", "gzip", "matplotlib.pyplot", "requests"}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, cell
            used = {line.split()[1] for line in cell.source.splitlines() if line.startswith(("import ", "from "))}
            assert used <= allowed, used - allowed


if __name__ == "__main__":
    harness.main(globals())
