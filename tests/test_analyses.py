"""`bench analyse`: every analysis in a tiny version, what it computes against slow loops, and its page."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from edge_hpcr.bench import analyses
from edge_hpcr.bench.analyses import cost
from edge_hpcr.bench.analyses.components import with_components
from edge_hpcr.bench.analyses.contract import Settings
from edge_hpcr.bench.analyses.flatness import losses, with_noise
from edge_hpcr.bench.analyses.gradients import ProxyGradients
from edge_hpcr.bench.analyses.knowledge import novel_and_historical
from edge_hpcr.bench.analyses.runs import Runs
from edge_hpcr.bench.analyses.temperature import static_options
from edge_hpcr.bench.run import Interrupted, Run, make_config
from edge_hpcr.commands.cli import main
from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import Locked, locked
from edge_hpcr.learner import checkpoint, methods
from edge_hpcr.learner import losses as learner_losses
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods.contract import StepView
from edge_hpcr.learner.methods.er import ER

TINY = {"seeds": 1, "limit": 10, "buffer": 10, "learner": {"nf": 2, "ema_decay": None}}
# What an analysis has beside those, made small; an analysis that is not named here runs with its own.
TINY_OF = {
    "temperature": {"taus": (0.05, 0.09), "lowest": (0.05,), "highest": (0.12, 0.16), "cycles": (5, 15)},
    "flatness": {"draws": 2, "images": 2},
    "contrastive": {"replays": (5, 60)},
    "components": {"replay": 5, "shares": (0.1, 1.0)},
    "tsne": {"replays": (5,), "images": 30},
    "cost": {
        "warm_up": 10,
        "rounds": 1,
        "counted": 1,
        "methods": ("hpcr", "pcr_ct", "er", "finetune", "iid_pp", "gmed"),
    },
}
LR = LearnerConfig.lr


def tiny(name: str, **options):
    return replace(analyses.analysis(name).small, **{**TINY, **TINY_OF.get(name, {}), **options})


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, dict]:
    """Every analysis there is, measured in its tiny version; runs are shared as they are in a user's folder."""
    runs = Runs(tmp_path_factory.mktemp("runs"), device="cpu")
    return {name: analyses.analysis(name).result("small", tiny(name), runs) for name in analyses.names()}


@pytest.fixture
def a_run(tmp_path):
    """A function that makes a run over a few digits, not begun."""

    def make(method: str = "pcr_ct", tasks: int = 5, limit: int = 20) -> Run:
        options = {"nf": 2, "ema_decay": None}
        memory = MemoryConfig(samples=10)
        config = make_config("digits", method, 0, memory, tasks, None, options, limit=limit, device="cpu")
        return Run(config, tmp_path)

    return make


def every_analysis(test):
    return pytest.mark.slow(pytest.mark.parametrize("name", analyses.names())(test))


# Every analysis


def test_the_analyses_of_the_issue_are_all_there_and_each_says_what_it_is():
    assert analyses.names() == (
        *("temperature", "proxy-gradients", "flatness", "contrastive", "components", "distillation-tasks"),
        *("distillation-gradients", "knowledge", "tsne", "cost"),
    )
    for one in map(analyses.analysis, analyses.names()):
        assert one.purpose and one.source and one.conclusion.endswith(".")
        assert isinstance(one.small, Settings) and isinstance(one.paper, type(one.small))


@pytest.mark.parametrize("name", analyses.names())
def test_the_papers_version_learns_a_dataset_of_the_paper_with_its_network(name):
    paper = analyses.analysis(name).paper
    assert paper.dataset in cost.PAPER_DATASETS and paper.learner == {} and paper.limit is None
    assert paper.cycle == 500 and paper.seeds == (1 if name == "tsne" else 10)


@every_analysis
def test_a_result_says_with_what_it_was_made_and_survives_json(results, name, tmp_path):
    result = results[name]
    text = json.dumps(result, allow_nan=False, separators=(",", ":"))
    assert json.loads(text) == result and len(text) < 60_000
    assert result["n"] == 1 and result["seeds"] == [0]
    assert result["settings"] == json.loads(json.dumps(asdict(tiny(name))))
    assert result["versions"].keys() >= {
        "edge_hpcr",
        "python",
        "torch",
        "numpy",
        "hardware",
        "threads",
        "device",
    }
    analyses.check(tmp_path / "file.json", result)


@every_analysis
def test_a_plot_is_a_picture_of_more_than_one_colour(results, name, tmp_path):
    ((title, _, path),) = analyses.draw([results[name]], tmp_path)
    picture = cv2.imread(str(path))
    assert title == name and path.suffix == ".png" and len(np.unique(picture.reshape(-1, 3), axis=0)) > 10


ROWS = {
    "temperature": ["both", "G", "P", "tau", "0.05"],
    "proxy-gradients": ["without HT", "with HT"],
    "flatness": ["without HT", "with HT"],
    "contrastive": ["PCR", "PCR+HC"],
    "components": ["PCR", "PCR+HC"],
    "distillation-tasks": ["DER", "PCD"],
    "distillation-gradients": ["none", "DER", "PCD", "SCD", "PCD+SCD"],
    "knowledge": ["er", "pcr", "pcr_ct", "hpcr"],
    "tsne": ["er", "hpcr"],
    "cost": ["hpcr", "pcr_ct", "er", "finetune", "iid_pp", "gmed", "HPCR", "control: as many bytes"],
}


@every_analysis
def test_a_table_has_every_row_and_the_section_what_the_paper_says(results, name):
    section = analyses.section(results[name])
    firsts = {line.strip("| ").split("|")[0].strip() for line in section.splitlines() if line.startswith("|")}
    assert set(ROWS[name]) <= firsts
    one = analyses.analysis(name)
    assert one.conclusion in section and "n = 1 seed" in section and one.finding(results[name]) in section


@pytest.mark.slow
def test_report_makes_a_page_of_analyses_with_their_plots(results, tmp_path, capsys):
    folder = tmp_path / "analyses"
    folder.mkdir()
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result))
    page = tmp_path / "docs" / "analyses.md"
    assert main(["report", str(folder), "--out", str(page)]) == 0
    text = page.read_text()
    for name in results:
        assert f"## {name}: " in text and f"(plots/analysis-{name}.png)" in text
        assert (page.parent / "plots" / f"analysis-{name}.png").is_file()
    assert "left out" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_result_is_left_out_with_one_line_and_the_later_of_two_counts(results, tmp_path, capsys):
    good = results["knowledge"]
    broken = {**good, "measured": {"er": []}}
    older = {**good, "finished": "2020-01-01T00:00:00Z"}
    for name, result in {"good": good, "broken": broken, "older": older}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert "broken.json: damaged" in said and "older.json: the same run is in" in said


@pytest.mark.slow
def test_a_second_time_nothing_is_learned_again_unless_something_else_is_measured(tmp_path):
    runs, settings = Runs(tmp_path, device="cpu"), tiny("flatness")
    one = analyses.analysis("flatness")

    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    first, before = one.measure(settings, runs), files()
    assert one.measure(settings, runs) == first and files() == before
    one.measure(replace(settings, draws=3), runs)
    assert files() != before
    before = files()
    assert one.measure(replace(settings, draws=3), Runs(tmp_path, device="cpu", fresh=True))
    assert not before.items() & files().items()


@pytest.mark.slow
def test_a_measurement_that_a_crash_cut_short_is_made_again(tmp_path):
    runs, settings = Runs(tmp_path, device="cpu"), tiny("proxy-gradients")
    one = analyses.analysis("proxy-gradients")
    first = one.measure(settings, runs)
    (path, *_) = sorted(tmp_path.glob("*.proxy-gradients"))
    path.write_text(path.read_text()[:20])
    assert one.measure(settings, runs) == first


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
def test_what_another_process_has_begun_stays_when_a_watched_run_is_refused(tmp_path, fresh):
    runs, settings = Runs(tmp_path, device="cpu", fresh=fresh), tiny("proxy-gradients")
    config = runs.config(settings, "pcr", 0)
    with pytest.raises(Interrupted):
        Run(config, tmp_path).run(on_step=lambda run: setattr(run, "stop_requested", True))
    with locked(tmp_path / f"{config.name}.lock", "held"), pytest.raises(Locked, match="another process"):
        runs.watched(config, settings, "seen", ProxyGradients)
    assert checkpoint.exists(tmp_path / f"{config.name}.checkpoint")
    assert len(runs.watched(config, settings, "seen", ProxyGradients)["sizes"]) == 10


# The command


def test_the_list_names_every_analysis_with_its_purpose(capsys):
    assert main(["bench", "analyse", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said and analyses.analysis(name).purpose in said for name in analyses.names())


@pytest.mark.parametrize(("arguments", "known"), [(["flat"], "flatness"), ([], "flatness")])
def test_an_unknown_or_missing_name_is_answered_with_the_known_ones_in_one_line(arguments, known, capsys):
    assert main(["bench", "analyse", *arguments]) == 2
    said = capsys.readouterr().err
    assert known in said and "components" in said and said.count("\n") == 1


def test_the_papers_version_without_its_data_is_refused_before_anything_is_learned(tmp_path, capsys):
    arguments = [
        "--paper",
        "--root",
        str(tmp_path),
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(["bench", "analyse", "knowledge", *arguments]) == 2
    assert "mini_imagenet" in capsys.readouterr().err and not list((tmp_path / "out").iterdir())


@pytest.mark.slow
def test_the_command_keeps_one_file_and_shows_its_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(analyses.analysis("distillation-tasks")), "small", tiny("distillation-tasks"))
    arguments = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main(["bench", "analyse", "distillation-tasks", *arguments]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "distillation-tasks.json"
    assert analyses.section(json.loads(path.read_text())) in capsys.readouterr().out


# Gradients of proxies


@pytest.mark.computes
@pytest.mark.slow
def test_the_cumulative_gradient_of_a_proxy_is_minus_its_way_over_the_learning_rate(a_run):
    run = a_run()
    watcher, ways = ProxyGradients(run), {}

    def after_step(run: Run) -> None:
        watcher.after_step(run)
        ways[run.progress.task] = run.learner.network.proxies.detach().double()

    run.run(on_step=after_step)
    before, after = ways[3], ways[4]
    way = after[: len(before)] - before  # of the classes that were there before the last task
    assert len(before) == 8 and way.norm() > 0
    torch.testing.assert_close(watcher.of_proxies[: len(before)], -way / LR, rtol=1e-3, atol=1e-3)


@pytest.mark.computes
def test_the_gradients_of_similarities_are_those_of_the_papers_equation(a_run):
    """eq. gradient_pcr for one batch: (k_c p_c - [c = y])/tau, mean over the anchors."""
    run = a_run(method="pcr", tasks=1, limit=10)
    watcher, method, seen = ProxyGradients(run), run.learner.method, []
    loss = method.loss
    method.loss = lambda batch: seen.append(batch) or loss(batch)
    run.run(on_step=watcher.after_step)
    logits, labels = seen[0].logits.detach().double(), seen[0].labels.tolist()
    net, size = [0.0] * logits.shape[1], [0.0] * logits.shape[1]
    for row, own in zip(logits.tolist(), labels, strict=True):
        total = sum(labels.count(c) * np.exp(o) for c, o in enumerate(row))
        for c, o in enumerate(row):
            slope = (labels.count(c) * np.exp(o) / total - (c == own)) / LearnerConfig.tau / len(labels)
            net[c] += slope
            size[c] += abs(slope)
    assert watcher.of_similarities.tolist() == pytest.approx(net, rel=1e-3, abs=1e-4)
    assert watcher.sizes.tolist() == pytest.approx(size, rel=1e-3, abs=1e-4)


def gradients(similarities: list[float], sizes: list[float]) -> list[dict]:
    """What was seen in one run of three old classes and a new one."""
    new = [False] * 3 + [True]
    return [
        {
            "new": new,
            "similarities": similarities,
            "sizes": sizes,
            "lengths": sizes,
            "accuracy": 0.5,
        }
    ]


def test_gradients_are_judged_by_their_signed_sums_as_the_paper_prints_them_and_by_their_sizes():
    measured = {
        "without HT": gradients([1.0, 1.0, 1.0, -3.0], [2.0, 2.0, 2.0, 6.0]),
        "with HT": gradients([-1.0, 1.0, 1.0, -1.0], [3.0, 3.0, 3.0, 9.0]),
    }
    found = analyses.analysis("proxy-gradients").finding({"measured": measured})
    signed, sizes = found.split("; ")
    assert "+1.0 and -1.0 with HT, to +3.0 and -3.0 without: the paper's direction" in signed
    assert "9.0 and 9.0 with HT, to 6.0 and 6.0 without: not the paper's direction" in sizes
    kinds = {
        "SCD": gradients([-1.0, 0.0, 0.0, 1.0], [5.0] * 4),
        "PCD": gradients([-2.0, 1.0, 0.0, 1.0], [4.0] * 4),
    }
    found = analyses.analysis("distillation-gradients").finding({"measured": kinds})
    signed, sizes = found.split("; ")
    assert "2.0 with SCD alone and to 4.0 with PCD alone: the paper's direction" in signed
    assert "20.0 with SCD alone and to 16.0 with PCD alone: not the paper's direction" in sizes


@pytest.mark.slow
def test_old_and_new_proxies_get_opposite_gradients_of_pcr(results):
    for seen in results["proxy-gradients"]["measured"].values():
        for each in seen:
            assert sum(each["similarities"]) == pytest.approx(0, abs=0.01)
            assert each["new"] == [False] * 8 + [True] * 2


# Flatness


@pytest.fixture
def taught(small_learner, digit_batches) -> Learner:
    learner = small_learner()
    for batch in digit_batches([0, 1, 2], 3):
        learner.observe(*batch)
    return learner


@pytest.mark.computes
def test_no_noise_gives_the_plain_loss_and_noise_another_and_the_network_stays(taught, digit_batches):
    (images, labels), *_ = digit_batches([0, 1, 2], 1)
    inputs, columns = taught.to_device(images), torch.tensor([taught.column(c) for c in labels.tolist()])
    before = {name: value.clone() for name, value in taught.network.state_dict().items()}
    plain = losses(taught.network, inputs, columns)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(losses(with_noise(taught.network, 0.0, generator), inputs, columns), plain)
    assert not torch.equal(losses(with_noise(taught.network, 0.1, generator), inputs, columns), plain)
    assert all(torch.equal(value, before[name]) for name, value in taught.network.state_dict().items())
    scores = torch.from_numpy(taught.predict(images).scores)
    expected = F.nll_loss(scores.log(), columns, reduction="none")
    torch.testing.assert_close(plain, expected, rtol=1e-3, atol=1e-4)


def test_noise_reaches_every_parameter_and_no_further_than_it_may(taught):
    noisy = with_noise(taught.network, 0.01, torch.Generator().manual_seed(0))
    for own, other in zip(taught.network.parameters(), noisy.parameters(), strict=True):
        assert 0.001 < (own - other).abs().max().item() <= 0.01 + 1e-6


# Principal components


@pytest.mark.computes
def test_all_components_give_the_features_back_and_fewer_give_the_nearest_of_their_dimension():
    generator = torch.Generator().manual_seed(0)
    long, short = torch.tensor([0.6, 0.8, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    amounts = torch.randn(50, 2, generator=generator) * torch.tensor([5.0, 0.1])
    features = 3 + amounts[:, :1] * long + amounts[:, 1:] * short
    torch.testing.assert_close(with_components(features, 1.0), features, rtol=1e-4, atol=1e-4)
    left = with_components(features, 1 / 3) - features.mean(0)
    assert torch.linalg.matrix_rank(left, rtol=1e-3) == 1
    assert F.cosine_similarity(left, long[None], dim=1).abs().min() > 0.99


@pytest.mark.slow
@pytest.mark.computes
def test_with_all_components_the_accuracy_is_the_plain_one(tmp_path):
    runs, settings = Runs(tmp_path, device="cpu"), tiny("components", shares=(1.0,))
    measured = analyses.analysis("components").measure(settings, runs)
    run = Run(runs.config(settings, "pcr", 0, learner={"replay": settings.replay}), tmp_path / "again")
    (tmp_path / "again").mkdir()
    run.run()
    right = run.learner.predict(run.stream.test_images).best == run.stream.test_labels
    # Rounding may turn a few answers that are as near to one class as to another.
    assert measured["PCR"]["1.0"][0] == pytest.approx(right.mean(), abs=0.02)


# Temperature, distillation, knowledge


@pytest.mark.parametrize(
    ("part", "gradient", "probabilities"), [("both", 0.2, 0.2), ("G", 0.2, 0.09), ("P", 0.09, 0.2)]
)
def test_a_static_temperature_is_changed_in_its_part_alone(part, gradient, probabilities):
    options, learner = static_options(part, 0.2)
    assert learner == {"tau": probabilities}
    multiplier = learner_losses.temperature_multiplier(
        7, learner["tau"], options["cycle"], options["tau_high"], options["tau_low"]
    )
    # The slope of the loss by a similarity is the multiplier over the tau of the probabilities.
    assert multiplier / probabilities == pytest.approx(1 / gradient)


@pytest.mark.computes
@pytest.mark.parametrize("seed", range(5))
def test_ders_distillation_is_the_mean_over_all_classes_of_the_squared_distances(seed):
    generator = torch.Generator().manual_seed(seed)
    logits, old = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    held = torch.rand(6, 4, generator=generator) < 0.5
    rows = [sum((logits[i, c] - old[i, c]).item() ** 2 for c in range(4) if held[i, c]) / 4 for i in range(6)]
    assert learner_losses.der(logits, old, held).item() == pytest.approx(sum(rows) / 6)
    assert learner_losses.der(logits[:0], old[:0], held[:0]) == 0


@pytest.mark.computes
def test_hpcr_distils_as_der_if_asked_also_the_classes_that_the_batch_lacks(small_learner, digit_batches):
    gradients = {}
    for kind in ("pcd", "der"):
        options = {"distillation": kind, "beta": 0.0, "alpha": 1.0, "distil": "always"}
        learner = small_learner(method="hpcr", method_options=options)
        for batch in [*digit_batches([0, 1], 2), *digit_batches([2], 1)]:
            learner.observe(*batch)
        for sample in learner.memory.ids()[learner.memory.labels() == 1]:
            learner.forget(int(sample))
        seen: list[torch.Tensor] = []
        loss = learner.method.loss
        learner.method.loss = lambda batch, seen=seen, loss=loss: (
            batch.logits.register_hook(seen.append) and loss(batch)
        )
        learner.observe(*digit_batches([2], 1, start=1)[0])
        gradients[kind] = seen[0][:, learner.column(1)].abs().sum()
    assert gradients["pcd"] == 0 < gradients["der"]


def test_methods_without_distillation_leave_its_kind_to_nobody():
    for name in ("pcr_ct", "pcr_c", "pcr"):
        assert "distillation" not in methods.method_class(name).options()
    assert {"distillation"} <= methods.method_class("pcr_ct_pcd").options()
    with pytest.raises(UserError, match=r"distillation.*pcd.*der"):
        methods.create("hpcr", {"distillation": "scd"})


def test_novel_knowledge_is_of_the_newest_task_and_historical_of_those_before_it():
    novel, historical = novel_and_historical([[0.9], [0.5, 0.8], [0.4, 0.6, 0.7]])
    assert novel == [0.9, 0.8, 0.7] and historical == pytest.approx([0.5, 0.5])


# Cost


@pytest.mark.computes
def test_the_operations_of_er_are_those_of_its_network_forward_and_backward(small_learner, digit_batches):
    learner = small_learner(method="er", ema_decay=None)
    first, second = digit_batches([0, 1], 2)
    learner.observe(*first)

    def alone() -> float:
        with FlopCounterMode(display=False) as counter:
            learner.network.train()
            features = learner.network.features(torch.rand(40, 3, 8, 8), [20, 20])
            learner.network.logits(features).sum().backward()
        return counter.get_total_flops()

    expected = alone()
    assert cost.operations(learner, [second]) == expected > 1e6


@pytest.mark.slow
def test_costs_are_relative_to_er_and_a_method_without_replay_has_half(results):
    measured = results["cost"]["measured"]["methods"]
    relative = {name: each["gflop"] / measured["er"]["gflop"] for name, each in measured.items()}
    assert relative["hpcr"] == pytest.approx(1, abs=0.1) and relative["finetune"] == pytest.approx(
        0.5, abs=0.05
    )
    assert all(each["model"]["network"] > 0 and each["ms"] > 0 for each in measured.values())


@pytest.mark.slow
def test_a_method_that_takes_gradients_of_images_and_keeps_them_as_floats_is_counted_and_weighed(results):
    gmed, er = (results["cost"]["measured"]["methods"][name] for name in ("gmed", "er"))
    assert gmed["gflop"] > 1.2 * er["gflop"]
    assert gmed["stores"]["bytes"] - er["stores"]["bytes"] == 3 * 8 * 8 * 3  # four bytes of a pixel, not one
    assert gmed["stores"]["numbers"] == er["stores"]["numbers"] == 1


class TwoNetworks(ER):
    """ER that keeps a copy of the network."""

    def begin(self, view: StepView) -> None:
        self.copied = {name: value.clone() for name, value in view.network.state_dict().items()}

    def state(self) -> dict[str, torch.Tensor]:
        return self.copied


def test_a_second_network_of_a_method_counts_as_model(small_learner):
    learner = small_learner(method="er")
    plain = cost.model_bytes(learner)
    learner.method = TwoNetworks()
    learner.method.begin(learner.view)
    assert plain["method"] == 0 and cost.model_bytes(learner)["method"] == plain["network"]


@pytest.mark.parametrize("dataset", cost.PAPER_DATASETS)
def test_the_data_overhead_of_hpcr_in_numbers_is_the_papers(dataset):
    printed, _ = cost.paper_costs()["data", "hpcr", dataset]
    assert round(cost.full_memory("hpcr", dataset, {}).overhead()["numbers"], 2) == pytest.approx(
        printed, abs=0.011
    )


@pytest.mark.slow
def test_the_control_spends_no_more_than_hpcr_and_nearly_as_much(results):
    ours, without, numbers, as_bytes = results["cost"]["measured"]["control"]
    assert without["samples"] == ours["samples"] < numbers["samples"]
    assert without["bytes"] < as_bytes["bytes"] <= ours["bytes"]
    a_sample = as_bytes["bytes"] / as_bytes["samples"]
    assert ours["bytes"] - as_bytes["bytes"] < a_sample


def test_every_method_of_the_papers_cost_tables_that_is_here_is_measured():
    printed = {method for _, method, _ in cost.paper_costs()}
    assert printed & set(methods.names()) <= set(cost.with_loss())
    assert not any(methods.method_class(name).closed_form for name in cost.with_loss())


def test_the_papers_data_file_is_part_of_the_package():
    assert cost.PAPER_COSTS.is_file() and cost.PAPER_COSTS.parent == Path(cost.__file__).parents[1]
