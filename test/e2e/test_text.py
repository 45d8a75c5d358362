#!/usr/bin/python3
"""What user code says in bytes that are no UTF-8, and what is cut within a character on its way, ends up in the job's record
all the same: its end is told, with its cause."""
import os
import pty
import subprocess
import tty

import harness
from harness import case

HEAD = "#include <kubeml.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
MODEL = ("static kml_tensor model(kml_graph *g, kml_tensor x)\n"
         "{\n    %sreturn kml_linear(g, kml_flatten(g, x), 10);\n}\n")
END = "KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0)%s);\n"


def fails(p, name, step, **options):
    """The ended task of a job whose step is that code; everybody sees that it has ended."""
    p.function(name, HEAD + MODEL % "" + f"static int step(kml_step *s)\n{{\n    {step}\n}}\n" + END % ", .step = step")
    job = p.train(name, default_parallelism=1, **options)
    task = p.wait(job)
    assert task["state"] == "failed", task
    assert [t["state"] for t in p.get("/tasks?state=all") if t["id"] == job] == ["failed"], p.get("/tasks?state=all")
    assert "has ended already: failed" in p.delete(f"/tasks/{job}", 409)["detail"]
    assert p.events(job)[-1][1]["state"] == "failed"
    return task


@case(limit=120)
def a_message_that_is_cut_within_a_character(p):
    """Cut at 255 bytes, cut again where words are put before it and behind it: at an even byte or at an odd one."""
    p.dataset()
    for at, before in enumerate(("", "x")):
        said = fails(p, f"cut{at}", f'return kml_step_fail(s, "%s", "{before}{"é" * 150}");')
        assert said["reason"] == "StepFailed" and f"{before}{'é' * 60}" in said["message"], said
    again = fails(p, "again", f'return kml_step_fail(s, "x{"ü" * 100}");', backoff_limit=1)
    assert again["reason"] == "StepFailed" and "xüü" in again["message"], again
    assert again["message"].endswith("; after 1 of 1 retries"), again


@case(limit=90)
def a_message_in_latin1(p):
    p.dataset()
    task = fails(p, "latin1", r'return kml_step_fail(s, "Gr\xf6\xdf" "e zu gro\xdf!");')
    assert task["reason"] == "StepFailed" and "Gr??e zu gro?!" in task["message"], task


@case(limit=90)
def a_model_that_is_refused_in_latin1(p):
    """Before there is a job."""
    p.dataset()
    code = HEAD + MODEL % r'if (kml_classes(g) == 10) return kml_fail(g, "Gr\xf6\xdf" "e!"); ' + END % ""
    p.function("refuses", code)
    asked = {"function_name": "refuses", "dataset": "tiny", "epochs": 1, "batch_size": 32, "lr": 0.01}
    assert "Gr??e!" in p.post("/train", 422, json=asked)["detail"]


@case(limit=90)
def last_words_in_latin1(p):
    """A crash is known by how the process ended; its words are the evidence."""
    p.dataset()
    task = fails(p, "dies", r'fputs("Gewicht zu gro\xdf, Ende\n", stderr); _Exit(3); return kml_gradients(s);')
    assert task["reason"] == "Crashed" and "exited with status 3" in task["message"], task
    assert "2 times" in task["message"] and "Gewicht zu gro?, Ende" in task["message"], task


SAYS = r'\033]0;title\007 \033[31mred\033[0m \303\251 \302\233" "1A \033[2J\rend'
SAID = "\033]0;title\x07 \033[31mred\033[0m é \x9b1A \033[2J\rend"
SHOWN = r"\x1b]0;title\x07 " + "\033[31mred\033[0m é " + r"\u009b1A \x1b[2J\x0dend"


def on_terminal(p, *command):
    """What a command writes to a terminal as its output, and what to standard error."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    done = subprocess.run([str(harness.BIN / "kubeml"), *command], stdin=subprocess.DEVNULL, stdout=theirs,
                          stderr=subprocess.PIPE, env={**os.environ, "KUBEML_URL": p.url}, timeout=60 * harness.STRETCH)
    os.close(theirs)
    return harness.shown_on(ours), done.stderr.decode()


@case(limit=120)
def commands_to_a_terminal_are_shown_and_not_carried_out(p):
    """By a log, which keeps its colours, and by the cause of a job's end."""
    p.dataset()
    task = fails(p, "paints", f'fputs("{SAYS}\\n", stderr); return kml_step_fail(s, "%s", "{SAYS}");')
    assert SAID in task["message"], task
    for command in (["logs"], ["logs", "-f"]):
        log, _ = on_terminal(p, *command, "--id", task["id"])
        assert f"{SHOWN}\n" in log and SAID not in log, repr(log)
    piped = subprocess.run([str(harness.BIN / "kubeml"), "logs", "--id", task["id"]], capture_output=True,
                           env={**os.environ, "KUBEML_URL": p.url})
    assert SAID.encode() + b"\n" in piped.stdout, piped.stdout
    _, told = on_terminal(p, "task", "wait", "--id", task["id"])
    assert "StepFailed" in told and SHOWN.replace("\033", r"\x1b") in told and "\033" not in told, repr(told)
    asked = ["--function", "refuses", "--dataset", "tiny", "--epochs", "1", "--batch", "32", "--lr", "0.01"]
    p.function("refuses", HEAD + MODEL % f'if (kml_classes(g) == 10) return kml_fail(g, "{SAYS}"); ' + END % "")
    _, told = on_terminal(p, "train", *asked)
    assert SHOWN.replace("\033", r"\x1b") in told and "\033" not in told, repr(told)


if __name__ == "__main__":
    harness.main(globals())
