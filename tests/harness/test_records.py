import resource
import subprocess
import sys

import pytest

from harness import records
from harness.records import RecordError


def row(**changes):
    return {
        "schema_version": records.SCHEMA_VERSION,
        "run_id": "r",
        "system": "native",
        "rows": 1024,
        "status": "ok",
    } | changes


def test_round_trip_keeps_every_column_as_text(tmp_path):
    path = tmp_path / "rows.csv"
    text = 'a "quoted", reason\nover two lines'
    records.write_rows(
        path,
        [row(reason=text, best_seconds=1.25e-3, self_pairs=False, prefixes=(64, 128), loss_error=None), row(rows=2)],
    )
    first, second = records.read_rows(path)
    assert tuple(first) == records.COLUMNS
    assert first["reason"] == text
    assert float(first["best_seconds"]) == 1.25e-3
    assert (first["self_pairs"], first["prefixes"], first["loss_error"]) == ("false", "64 128", "")
    assert second["rows"] == "2"


def test_floats_survive_exactly(tmp_path):
    path = tmp_path / "rows.csv"
    value = 0.1 + 0.2
    records.write_rows(path, [row(best_seconds=value)])
    assert float(records.read_rows(path)[0]["best_seconds"]) == value


def test_an_unknown_key_is_refused():
    with pytest.raises(KeyError, match="speed"):
        records.format_rows([row(speed=1)])


# The header as version 1 wrote it, spelled out here so that it cannot move with the code.
VERSION_1 = (
    "schema_version,run_id,system,loss,variant,state,rows,dims,prefixes,dtype,gradient_dtype,scale,bias,seed,self_pairs,"
    "world_size,nodes,device,protocol,status,reason,best_seconds,median_seconds,mean_seconds,mean_low_seconds,"
    "mean_high_seconds,rounds,samples,first_step_seconds,allocated_peak_bytes,step_peak_bytes,device_used_bytes,"
    "loss_value,loss_error,embedding_gradient_error,scale_gradient_error,bias_gradient_error,samples_file,"
    "environment_file,case_id,expected_status,labels,live,prefix_weights,threads,steps_per_block,device_name,"
    "system_version,inputs_sha256,git_revision,published_time_text,published_memory_text,source"
)


def version_1(**cells):
    names = VERSION_1.split(",")
    return VERSION_1 + "\n" + ",".join({"schema_version": "1", **cells}.get(name, "") for name in names) + "\n"


def test_a_file_of_version_1_is_read_as_the_current_one(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(version_1(system="native", rows="1024", best_seconds="0.25", samples_file="samples.parquet"))
    (found,) = records.read_rows(path)
    assert tuple(found) == records.COLUMNS
    assert (found["schema_version"], found["system"], found["best_seconds"]) == ("3", "native", "0.25")
    assert found["cache_state"] == "warm", "version 1 timed steps one after the other"
    assert not any(found[name] for name in ("retries", "energy_joules_per_step", "compile_seconds", "form", "bytes"))
    again = tmp_path / "again.csv"
    records.write_rows(again, [found])
    assert records.read_rows(again) == [found], "a migrated row is a row of the current version"


def test_a_file_of_version_2_is_read_as_the_current_one(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(version_1(system="native", best_seconds="0.25").replace("\n1,", "\n2,"))
    (found,) = records.read_rows(path)
    assert (found["schema_version"], found["best_seconds"], found["cache_state"]) == ("3", "0.25", "")
    assert (found["end_wait_seconds"], found["differing_repetitions"]) == ("", "")


def test_a_published_row_of_version_1_says_nothing_of_caches(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(version_1(system="native", best_seconds="0.25", source="a page"))
    assert records.read_rows(path)[0]["cache_state"] == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("best_seconds", "fastest_seconds", 1), "'best_seconds' is missing"),
        (lambda text: text.replace("case_id", "case_key", 1), "'case_key' is not one of"),
        (lambda text: text.replace("labels", "system", 1), "'system' stands twice"),
        (lambda text: text[:-10], "line 2 has"),
        (lambda text: "", "empty file"),
        (lambda text: text.replace("\n3,", "\n99,", 1), "'schema_version' is '99'"),
    ],
)
def test_a_damaged_file_names_the_column_or_line(tmp_path, change, message):
    path = tmp_path / "rows.csv"
    path.write_text(change(records.format_rows([row()])))
    with pytest.raises(RecordError, match=message) as caught:
        records.read_rows(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_spreadsheet_saved_is_read(tmp_path):
    text = records.format_rows([row(reason="zwölf")])
    (tmp_path / "rows.csv").write_bytes(("\ufeff" + text.replace("\n", "\r\n")).encode())
    (found,) = records.read_rows(tmp_path / "rows.csv")
    assert (found["schema_version"], found["reason"]) == (str(records.SCHEMA_VERSION), "zwölf")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecordError, match="cannot be read"):
        records.read_rows(path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    """A full disk, played by a limit on file size, in a process of its own."""
    path = tmp_path / "rows.csv"
    records.write_rows(path, [row()])
    before = path.read_bytes()
    script = (
        "import resource, sys\n"
        "from harness import records\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))\n"
        "try: records.write_rows(sys.argv[1], [{'schema_version': 1}] * 100)\n"
        "except OSError: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)]).returncode == 7
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]
