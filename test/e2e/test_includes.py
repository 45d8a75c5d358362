#!/usr/bin/python3
"""Folders use each other along the table of test/include_rules.py alone; and what breaks it is found."""
import functools
import re
import sys

import harness
from harness import BUILD, ROOT, case

sys.path.insert(0, str(ROOT / "test"))
import include_rules as rules  # noqa: E402


@functools.cache
def tree():
    return rules.read_tree()


def found(path, text, **others):
    """What is wrong where the tree has one file more."""
    return rules.breaks({**tree(), path: text, **others})


def tells(path, text, *parts):
    said = [line for line in found(path, text) if line.startswith(path) or path in line]
    assert any(all(part in line for part in parts) for line in said), said


@case(platform=False)
def every_include_has_an_arrow():
    said = rules.breaks(tree())
    assert not said, "\n".join(said)


@case(platform=False)
def every_call_has_an_arrow():
    """Of the objects of this build: a prototype in another header, or an extern, would go around the includes' table."""
    objects = rules.objects_of(BUILD, tree())
    missing = {row for row in rules.USES if not row.endswith(".h") and not re.search("include|examples|cuda|mongo|module", row)} - {
        rules.folder_of(source) for source in objects}
    assert not missing, f"nothing is built of {missing}"
    said = list(rules.called_wrongly(rules.symbols(objects)))
    assert not said, "\n".join(said)


@case(platform=False)
def every_folder_of_the_product_has_a_row():
    there = {rules.folder_of(path) for path in tree() if not path.startswith("test/")}
    rows = {row for row in rules.USES if not row.endswith(".h")}
    assert there == rows, there ^ rows


@case(platform=False)
def a_row_that_closes_a_circle_is_found():
    uses = {**rules.USES, "common/kube": "common/net"}
    assert any("common/kube" in line for line in rules.cycles(tree(), uses))


@case(platform=False)
def an_include_against_the_table_is_found():
    tells("common/base/more.c", '#include "common/net/wire.h"\n', "common/base/more.c:1: ", "may not use common/net/wire.h")
    tells("cli/more.c", '\n\n#  include "controller/controller.h"\n', "cli/more.c:3: ", "may not use controller/controller.h")
    tells("kernels/cpu/more.c", '#include "common/contract/gpu.h"\n', "may not use common/contract/gpu.h")
    tells("controller/kube/more.h", '#include "controller/cluster/cluster.h"\n', "may not use controller/cluster/cluster.h")
    tells("ps/conn/more.h", '#include "ps/job/job_spec.h"\n', "may not use ps/job/job_spec.h")
    tells("common/more/x.c", '#include "common/net/wire.h"\n', "common/more may not use")
    assert not [line for line in found("ps/job/more.c", '#include "ps/conn/worker.h"\n#include "common/net/wire.h"\n') if "more.c" in line]


@case(platform=False)
def an_include_by_another_way_is_found():
    neither = "neither a path from the root nor the name of a header beside it"
    tells("ps/job/more.c", '#include "worker.h"\n', "ps/job/more.c:1: ", neither)
    tells("ps/job/more.c", '#include "../conn/hub.h"\n', neither)
    tells("ps/job/more.c", '#include "test.h"\n', neither)
    tells("test/unit/more.c", '#include "err.h"\n', neither)
    assert not [line for line in found("test/unit/more.c", '#include "test.h"\n#include "ps/job/job_spec.h"\n') if "more.c" in line]


@case(platform=False)
def a_file_of_a_test_in_the_product_is_found():
    tells("ps/more.c", '#include "test/support/test.h"\n', "ps/more.c:1: ", "may not use")
    tells("ps/more.c", "\n/* see test/support/test.h. */\n", "ps/more.c:2: names test/support/test.h")


@case(platform=False)
def two_headers_of_one_name_are_found():
    tells("ps/conn/wire.h", "", "has the name of common/net/wire.h", "ps/conn/wire.h")


@case(platform=False)
def headers_in_a_circle_are_found():
    said = found("cli/one.h", '#include "two.h"\n', **{"cli/two.h": '#include "one.h"\n'})
    assert any("headers go in a circle" in line and "cli/one.h" in line for line in said), said


@case(platform=False)
def a_call_against_the_table_is_found():
    def said(*symbols):
        return list(rules.called_wrongly(symbols))
    line, = said(("common/base/a.c", "wire_open", "U"), ("common/net/wire.c", "wire_open", "T"))
    assert line == "common/base/a.c: common/base may not use wire_open of common/net/wire.c"
    assert said(("controller/ha/a.c", "jobs", "U"), ("controller/jobs/b.c", "jobs", "D"))
    assert not said(("ps/job/a.c", "worker_open", "U"), ("ps/conn/worker.c", "worker_open", "T"), ("ps/job/a.c", "printf", "U"))


if __name__ == "__main__":
    harness.main(globals())
