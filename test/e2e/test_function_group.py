#!/usr/bin/python3
"""`kubeml run --functions N`: the functions of a job in one process, with a job's weights."""
import harness
from harness import LENET, case
from test_function_run import epochs, files, run, same


@case(limit=90)
def the_weights_of_a_job_with_as_many_functions(p):
    p.dataset()
    p.function()
    for k in (-1, 3):
        job = p.train(epochs=2, default_parallelism=3, seed=5, k=k)
        p.succeed(job)
        record = p.get(f"/history/{job}")
        data = record["data"]
        folder, _ = files()
        model = folder / "mine.safetensors"
        mine = epochs(run(LENET, "-e", 2, "-b", 32, "--lr", 0.01, "--seed", 5, "--threads", record["plan"]["threads"],
                          "--functions", 3, "--k", k, "--json", "--save", model, "--dataset", "tiny",
                          env={"KUBEML_HOME": str(p.folder / "home")})[0])
        assert same([e["train_loss"] for e in mine], data["train_loss"]), (k, mine, data)
        assert same([e["validation_loss"] for e in mine], data["validation_loss"]), (k, mine, data)
        assert p.get(f"/model/{job}") == model.read_bytes(), f"k {k}: another file than the job's export"
    assert all(e["exact"] and "in function order" in e["averaging"] for e in mine), mine
    said = p.get(f"/tasks/{job}")["averaging"]
    assert said == "models are averaged on the host, in function order, through shared memory", said
    assert said in p.get(f"/tasks/{job}/explain")["evidence"]


@case(platform=False)
def where_models_are_averaged_is_said_and_nccl_wants_gpus():
    data = files()[1]
    text = run("--model", "mlp", *data, "-e", 1, "--functions", 2, "--device", "cpu")[0]
    assert "2 functions; models are averaged on the host, in function order: not every function has a GPU" in text, text
    said = run("--model", "mlp", *data, "-e", 1, "--functions", 2, "--device", "cpu", "--merge", "nccl", status=1)[1]
    assert "merge: nccl averages on GPUs, and not every function has one" in said, said
    for words, why in ((("--merge", "ring"), "neither auto nor nccl"), (("--k", "0"), "1 or more"),
                       (("--functions", "0"), "from 1 to 64")):
        said = run("--model", "mlp", *data, *words, status=2)[1]
        assert why in said, (words, said)


harness.main(globals())
