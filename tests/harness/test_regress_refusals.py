"""What the regression check refuses to compare, and how it answers bad input: one line, exit status 2."""

import json

import pytest

from harness import records, regress
from harness.records import COLUMNS
from tests.harness.regress_rows import ENVIRONMENT, steady


def test_nothing_in_common_cannot_be_compared(pair, capsys):
    assert pair([steady(10)], [steady(10, rows=2048)]) == 2
    assert "no case in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "condition"),
    [
        ({"device_name": "NVIDIA B300"}, "device_name"),
        ({"seed": 43}, "seed"),
        ({"inputs_sha256": "cd" * 32}, "inputs"),
        ({"dims": 2048}, "dims"),
        ({"prefixes": "1024"}, "prefixes"),
        ({"dtype": "float32"}, "dtype"),
        ({"gradient_dtype": "float32"}, "dtype"),
        ({"scale": 20.0}, "scale"),
        ({"threads": 4}, "threads"),
        ({"system_version": "0.2.0"}, "versions"),
        ({"system_version": ""}, "versions"),  # not recorded, where the other one says 0.1.0
        ({"inputs_sha256": ""}, "inputs"),
        ({"prefix_weights": "1 0 0 0 0"}, "prefixes"),
    ],
)
def test_conditions_that_differ_are_refused_unless_allowed(pair, capsys, change, condition):
    assert pair([steady(10)], [steady(10, **change)]) == 2
    said = capsys.readouterr().out
    assert "cannot compare" in said and f"  {condition}: " in said and f"allow=[{condition}]" in said
    assert pair([steady(10)], [steady(10, **change)], f"allow=[{condition}]") == 0
    assert pair([steady(10)], [steady(10, **change)], f"--allow=cache,{condition}") == 0
    capsys.readouterr()


def gpu(**changes):
    """The environment with another GPU."""
    return ENVIRONMENT | {"before": {"gpus": [ENVIRONMENT["before"]["gpus"][0] | changes]}}


@pytest.mark.parametrize(
    ("environment", "condition", "told"),
    [
        (ENVIRONMENT | {"python": "3.12.1"}, "versions", "python 3.11.7 -> python 3.12.1"),
        (ENVIRONMENT | {"packages": {"torch": "2.15.0"}}, "versions", "torch 2.14.1 -> torch 2.15.0"),
        (gpu(driver_version="590.1"), "driver", "580.159 -> 590.1"),
        (gpu(**{"power.limit": "500.00 W"}), "power_limit", "700.00 W -> 500.00 W"),
        (
            ENVIRONMENT | {"variables": {"NCCL_NVLS_ENABLE": "0"}},
            "variables",
            "NCCL_NVLS_ENABLE unset -> NCCL_NVLS_ENABLE=0",
        ),
    ],
)
def test_what_holds_for_a_whole_run_is_a_condition_too(pair, capsys, environment, condition, told):
    both = (ENVIRONMENT, environment)
    assert pair([steady(10)], [steady(10)], environments=both) == 2
    assert told in capsys.readouterr().out
    assert pair([steady(10)], [steady(10)], f"allow={condition}", environments=both) == 0


def test_quick_is_never_compared_with_standard(pair, capsys):
    assert pair([steady(10)], [steady(10, protocol="quick")]) == 2
    assert "never compared" in capsys.readouterr().out
    assert pair([steady(10)], [steady(10, protocol="quick")], "allow=[protocol]") == 2
    assert "protocol may never differ" in capsys.readouterr().err


@pytest.mark.parametrize("sides", [({}, ENVIRONMENT), (ENVIRONMENT, {}), ({}, {})])
@pytest.mark.parametrize(
    ("device", "unknown"),
    [("cuda", "driver,power_limit,variables,versions"), ("cpu", "variables,vectors,versions")],
)
def test_what_is_not_recorded_is_refused_unless_allowed(pair, capsys, sides, device, unknown):
    """A CSV without its environment.json: nobody knows the driver. What is beside the device is no matter."""
    rows = [steady(10, device=device)]
    assert pair(rows, rows, environments=sides) == 2
    said = capsys.readouterr().out
    assert [line.split(":")[0].strip() for line in said.splitlines()[1:-1]] == sorted(
        unknown.split(","), key=["driver", "power_limit", "versions", "vectors", "variables"].index
    )
    assert "not recorded" in said and f"allow=[{unknown}]" in said
    assert pair(rows, rows, f"allow={unknown}", environments=sides) == 0
    said = capsys.readouterr().out
    assert "1 same" in said
    assert (f"note: variables is not recorded in {'BASE' if sides[1] else 'NEW'}" in said) == (sides[0] != sides[1])
    assert pair(rows, rows, f"allow={unknown.partition(',')[2]}", environments=sides) == 2
    assert f"allow=[{unknown.partition(',')[0]}]" in capsys.readouterr().out


def test_a_package_that_only_one_run_looked_at_is_noted(pair, capsys):
    fewer = ENVIRONMENT | {"packages": {"torch": "2.14.1"}}
    assert pair([steady(10)], [steady(10)], environments=(ENVIRONMENT, fewer)) == 0
    assert "note: the version of jax is recorded in BASE only" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "TRITON_CACHE_DIR", "CUDA_HOME", "NCCL_VERSION"])
def test_variables_that_say_where_something_lies_are_no_condition(pair, name):
    other = ENVIRONMENT | {"variables": {name: "elsewhere"}}
    assert pair([steady(10)], [steady(10)], environments=(ENVIRONMENT, other)) == 0


def test_a_row_that_never_ran_has_no_version_to_compare(pair):
    missing = steady(10, status="unsupported", reason="no jax", system_version="", device_name="")
    assert pair([missing], [steady(10)]) == 0


def lengths(**changes):
    """The environment of a protocol with other lengths."""
    return ENVIRONMENT | {"protocol": ENVIRONMENT["protocol"] | changes}


@pytest.mark.parametrize("name", ["quick", "custom"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps_per_block": 20}, "steps_per_block 100 -> steps_per_block 20"),
        ({"warmup_seconds": 0.2}, "warmup_seconds 1.0 -> warmup_seconds 0.2"),
        ({"together": True}, "together False -> together True"),
        ({"one_step": True}, "one_step False -> one_step True"),
    ],
)
def test_a_protocol_is_its_lengths_and_not_its_name(pair, capsys, name, change, told):
    rows = [steady(10, protocol=name)]
    assert pair(rows, rows, environments=(ENVIRONMENT, lengths(**change))) == 2
    said = capsys.readouterr().out
    assert f"  protocol: {told}\n" in said and "allow=" not in said
    assert pair(rows, rows, environments=(lengths(**change), lengths(**change))) == 0


def test_rounds_and_retries_are_no_lengths_of_a_protocol(pair):
    other = lengths(rounds=7, retries=0, maximum_range=0.5, cache="warm", together=False)
    assert pair([steady(10)], [steady(10)], environments=(ENVIRONMENT, other)) == 0


def test_a_custom_protocol_without_its_lengths_is_none(pair, capsys):
    unknown = {name: value for name, value in ENVIRONMENT.items() if name != "protocol"}
    rows = [steady(10, protocol="custom")]
    assert pair(rows, rows, environments=(ENVIRONMENT, unknown)) == 2
    assert "protocol: lengths recorded -> lengths not recorded" in capsys.readouterr().out
    assert pair([steady(10)], [steady(10)], environments=(ENVIRONMENT, unknown)) == 0


def test_refusal_as_json(pair, capsys):
    assert pair([steady(10)], [steady(10, seed=1)], "format=json") == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["differences"] == [{"condition": "seed", "base": "seed 42", "new": "seed 1"}]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty file"),
        (",".join(COLUMNS) + "\n", "no rows"),
        ("schema_version,run_id\n1,r\n", "column 'system' is missing"),
        (",".join(COLUMNS) + "\n1,r\n", "line 2 has 2 cells"),
        ("\x00\xff", "cannot be read"),
    ],
)
def test_broken_files_give_one_line_and_exit_2(tmp_path, capsys, content, told):
    path = tmp_path / "base.csv"
    path.write_bytes(content.encode("latin-1"))
    assert regress.main([f"base={path}", f"new={path}"]) == 2
    said = capsys.readouterr().err
    assert told in said and str(path) in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("mean_seconds", "fast"),
        ("allocated_peak_bytes", "1.5"),
        ("mean_low_seconds", "-1"),
        ("status", "fine"),
        ("schema_version", "²"),
        ("round_mean_seconds", "0.01 0.0.2"),
    ],
)
def test_broken_cells_name_the_column(pair, capsys, column, value):
    assert pair([steady(10)], [steady(10, **{column: value})]) == 2
    said = capsys.readouterr().err
    assert f"column '{column}'" in said and "line 2" in said


def test_a_report_that_cannot_be_written_does_not_hide_the_comparison(pair, capsys):
    assert pair([steady(10)], [steady(10)], "junit=/nowhere/regress.xml") == 2
    said = capsys.readouterr()
    assert "1 cases compared; 1 same" in said.out
    assert said.err == "regress: cannot write /nowhere/regress.xml: No such file or directory\n"


def test_a_mean_outside_of_its_range_is_a_broken_row(pair, capsys):
    assert pair([steady(10)], [steady(10, mean_seconds=0.02)]) == 2
    assert "line 2, mean_seconds 0.02 lies outside of its range" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"before": [1]},
        {"packages": 3},
        {"host": ["x"]},
        {"host": {"vector_flags": [1]}},
        {"before": {"gpus": [0]}},
        {"variables": [1]},
        {"protocol": {"blocks": 3}},
    ],
)
def test_an_environment_that_was_changed_is_one_line(pair, capsys, change):
    assert pair([steady(10)], [steady(10)], environments=(ENVIRONMENT, ENVIRONMENT | change)) == 2
    said = capsys.readouterr().err
    assert "environment.json" in said and "not what a run records" in said and said.count("\n") == 1


def test_a_case_twice_in_one_file_is_an_error(pair, capsys):
    assert pair([steady(10)], [steady(10), steady(11)]) == 2
    assert "line 3 repeats the case of line 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "base is missing"),
        (["base=/nowhere"], "does not exist"),
        (["base=x", "new="], "new is empty; name a result CSV"),
        (["hello"], "not field=value"),
        (["base=x", "speed=3"], "unknown field 'speed'"),
        (["base=x", "allow=[weather]"], "unknown condition 'weather'"),
        (["base=x", "format=xml"], "unknown format 'xml'"),
        (["base=x", "minimum_effect=much"], "minimum_effect is 'much'"),
        (["base=x", "minimum_effect=[3"], "cannot be read"),
        (["base=x", "relative=1"], "relative is 1"),
        (["base=x", "profile=mine"], "unknown profile 'mine'; known: shared_machine"),
    ],
)
def test_bad_arguments_give_one_line_and_exit_2(capsys, arguments, told):
    assert regress.main(arguments) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1


def test_a_base_of_another_machine_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    from harness import environment, remeasure

    measured = []
    monkeypatch.setattr(remeasure, "measure_rows", lambda *given: measured.append(given) or tmp_path / "base")
    monkeypatch.setattr(environment, "describe", lambda *_: {"host": {"cpu": "A", "vector_flags": ["fma"]}, **versions})
    versions = {"packages": {"torch": "2.14.1"}, "python": "3.11.7", "gpus": []}
    monkeypatch.setattr(remeasure.command, "recorded_environment", lambda: {"OMP_PROC_BIND": "true"})
    (tmp_path / "base").mkdir()
    records.write_rows(tmp_path / "base" / "rows.csv", [steady(10, device="cpu", device_name="B")])
    (tmp_path / "base" / "environment.json").write_text(json.dumps(ENVIRONMENT))
    assert regress.main([f"base={tmp_path / 'base'}"]) == 2
    said = capsys.readouterr().out
    for told in ("vectors: avx2 fma -> fma", "OMP_PROC_BIND unset -> OMP_PROC_BIND=true", "device_name: B -> A"):
        assert told in said
    assert measured == []
    assert regress.main([f"base={tmp_path / 'base'}", "allow=[vectors,variables,device_name]"]) == 0
    assert measured[0][3] == ENVIRONMENT["protocol"], "its lengths are measured again"
