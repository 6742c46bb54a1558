import pytest

from harness import configuration, configuration_checks, plan
from harness.cases import ConfigurationError
from harness.machine import Machine

MACHINE = Machine(cores=8, memory_bytes=16 << 30, cpu_name="cpu", cpu_slug="cpu")


@pytest.mark.parametrize("campaign", configuration.options("campaign"))
def test_every_campaign_composes(campaign):
    chosen = configuration.compose([f"campaign={campaign}"])
    assert chosen.campaign == campaign
    assert chosen.protocol["name"] in ("quick", "standard", "survey", "one_step")
    for device in ("cpu", "cuda"):
        assert all(matrix.rows for matrix in chosen.for_device(device).matrices())


@pytest.mark.parametrize("campaign", ["quick", "devices", "scale_up", "scale_up_peers", "peers", "peers_strongest"])
def test_the_one_set_loss_is_measured_at_the_batches_of_two_set_systems(campaign):
    """What the report's reading by the same batch of pairs needs: native one_set at 2R for every two-set row."""
    chosen = configuration.compose([f"campaign={campaign}"])
    for device in [chosen.device] if chosen.device else ["cpu", "cuda"]:
        found = [each.case for each in plan.enumerate_cases(chosen.for_device(device), MACHINE)]
        ours = {(case.rows, case.world_size) for case in found if (case.system, case.variant) == ("native", "one_set")}
        peers = {(2 * case.rows, case.world_size) for case in found if case.loss in ("two_set_sigmoid", "info_nce")}
        assert peers and peers <= ours, device


@pytest.mark.parametrize("campaign", ["scale_up", "scale_up_peers"])
def test_what_is_scaled_is_measured_on_one_gpu_too(campaign):
    chosen = configuration.compose([f"campaign={campaign}"])
    found = [each.case for each in plan.enumerate_cases(chosen.for_device("cuda"), MACHINE)]
    ranks: dict[str, set[int]] = {}
    for case in found:
        ranks.setdefault(f"{case.system}:{case.variant}", set()).add(case.world_size)
    assert set(map(frozenset, ranks.values())) == {frozenset({1, 2, 4, 8})}


def test_fields_that_parts_set_are_not_set_beside_them():
    chosen = configuration.compose(["campaign=metric_learning", "states=[init]"])
    assert {tuple(matrix.states) for matrix in chosen.matrices()} == {("init",)}
    for overrides, words in (
        (["campaign=metric_learning", "rows=[8]"], "the parts of campaign metric_learning set rows"),
        (["parts=[{seed:1}]"], "parts set 'seed'; they may set systems, "),
        (["parts=[1]"], "give a list of mappings"),
        (["parts=[{labels:triples}]"], "unknown labels 'triples'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            configuration.compose(overrides).matrices()


def test_the_named_campaigns_are_what_the_design_says():
    article = configuration.compose(["campaign=article"])
    assert (article.rows, article.nodes, article.devices_per_node) == ([1024, 4096, 16384], [1, 2], 8)
    assert article.protocol["name"] == "standard"
    quick = configuration.compose()
    assert quick.for_device("cpu").rows == [256, 1024]
    assert quick.for_device("cuda").rows == [1024, 4096, 16384]
    assert configuration_checks.seconds(quick.for_device("cpu").budget, "budget") <= 8 * 60
    devices = configuration.compose(["campaign=devices"])
    assert (devices.rows, devices.world_sizes, devices.device) == ([256], [1, 2, 4], "cpu")


def test_standard_protocol_keeps_the_design_s_lengths():
    protocol = configuration.compose(["protocol=standard"]).protocol
    assert (protocol["rounds"], protocol["blocks"], protocol["steps_per_block"]) == (3, 3, 100)
    assert (protocol["warmup_steps"], protocol["warmup_seconds"]) == (10, 1.0)
    assert protocol["max_block_seconds"] == 100 * 0.1


def test_overrides_beat_campaigns_and_lists_replace_lists():
    chosen = configuration.compose(
        ["campaign=article", "rows=[5]", "systems=[native,open_clip:bidir,big_vision]", "protocol=quick", "seed=7"]
    )
    assert chosen.rows == [5]
    assert chosen.systems == ["native", "open_clip:bidir", "big_vision"]
    assert (chosen.protocol["name"], chosen.seed) == ("quick", 7)
    assert configuration.compose(["rows=[5]"]).for_device("cpu").rows == [5]


def test_null_on_the_command_line_stays_null_whatever_a_campaign_says_for_the_device():
    assert configuration.compose().for_device("cpu").budget is not None
    assert configuration.compose(["budget=null"]).for_device("cpu").budget is None


def test_a_changed_protocol_is_custom_but_rounds_may_vary():
    assert configuration.compose(["protocol.rounds=5"]).protocol["name"] == "quick"
    assert configuration.compose(["protocol.blocks=5"]).protocol["name"] == "custom"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "campaign=big",
            "unknown campaign 'big'; known: article, .*, peers, .*, single_gpu",
        ),
        ("protocol=slow", "known: one_step, quick, standard, survey"),
        ("launch=x", "known: auto, one_box"),
        ("row=[1]", "unknown field 'row'; known: .*rows"),
        ("protocol.round=1", "known: .*protocol.rounds"),
        ("machine.gpus=1", "known: .*machine.cores"),
        ("states=[late]", "known: init, trained, clip"),
        ("labels=triples", "known: pairs, distinct, equal, mixed, fours, sixteens"),
        ("device=tpu", "known: cpu, cuda"),
        ("dtype=float16", "known: bfloat16, float32"),
        ("rows=[0]", "whole numbers"),
        ("rows=1024", "whole numbers"),
        ("rows=[a]", "whole numbers"),
        ("same_batch=native", "give a list, such as same_batch="),
        ("rows=[1,", "cannot read"),
        ("rows=1,2", "cannot read"),
        ("dims=0", "at least 1"),
        ("seed=-1", "seed"),
        ("seed=x", "seed"),
        ("budget=soon", "such as 10m"),
        ("list=maybe", "true or false"),
        ("protocol.blocks=0", "protocol.blocks"),
        ("protocol.steps_per_block=1", "at least 2"),
        ("protocol.max_block_seconds=-1", "seconds"),
        ("rows", "not an override"),
        ("+rows=[1]", "not an override"),
        ("prefix_weights=3", "prefix_weights"),
        ("prefix_weights=[1,1,1,1,nan]", "give a list of numbers"),
        ("protocol.warmup_seconds=inf", "seconds"),
        ("states=null", "states is null"),
        ("prefixes=null", "prefixes is null"),
        ("results=5", "results is 5; give a path"),
        ("binary=null", "binary is None; give a path"),
        ("reference=oracle", "give module:function"),
        ("launch.nodes=0", "launch.nodes is 0"),
        ("launch.source=mpi", "unknown launch.source 'mpi'"),
        ("launch.lost_seconds=1", "2 or more"),
        ("launch.wait_seconds=soon", "launch.wait_seconds is 'soon'"),
        ("launch.queue=pbs", "unknown launch.queue 'pbs'; known: slurm, local"),
        ("launch.queue_options=3", "give submitit's parameters"),
        ("launch.follower_status=-1", "launch.follower_status"),
        ("launch.deadline_seconds=0", "above 0"),
        ("launch.grace_seconds=null", "seconds"),
        ("machine.name=../elsewhere", "names a folder"),
        ("machine.cores=0", "machine.cores is 0"),
        ("machine.memory_bytes=24G", "machine.memory_bytes is '24G'"),
        ("machine.lock_folder=5", "give a path"),
        ("rows=" + "[" * 3000 + "]" * 3000, "cannot read the configuration"),
    ],
)
def test_bad_input_is_one_line_with_the_way_out(override, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        configuration.compose([override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("override", ["on_cpu=5", "on_cpu.rows=[a]", "on_cpu.rows=[0]"])
def test_what_fills_empty_fields_is_checked_too(override):
    with pytest.raises(ConfigurationError, match=r"on_cpu is 5|rows is "):
        configuration.compose([override]).for_device("cpu")


@pytest.mark.parametrize(
    ("text", "want"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), (45, 45), (None, None)]
)
def test_durations(text, want):
    assert configuration_checks.seconds(text, "budget") == want


def test_what_is_measured_decides_the_digest():
    same = configuration.compose(["budget=3m", "resume=false", "results=elsewhere"])
    assert same.digest == configuration.compose().digest
    assert configuration.compose(["seed=1"]).digest != same.digest
