"""What every method must do, run over all of them by name; and what tells the methods apart."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint, losses, methods
from edge_hpcr.learner.learner import Learner, LearnerConfig, StepReport
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.methods import Batch, Method, Records
from edge_hpcr.learner.methods.hpcr import HPCR, Config

pytestmark = pytest.mark.computes

every_method = pytest.mark.parametrize("name", methods.names())
every_method_with_a_loss = pytest.mark.parametrize(
    "name", [name for name in methods.names() if not methods.method_class(name).closed_form]
)
SHADES = {0: (200, 40, 40), 1: (40, 200, 40), 2: (40, 40, 200), 3: (200, 200, 40)}


def make_learner(name: str, options: dict[str, Any] | None = None, **changes: Any) -> Learner:
    config = LearnerConfig(
        height=8,
        width=8,
        method=name,
        method_options=options or {},
        memory=MemoryConfig(samples=12),
        nf=4,
        replay=4,
    )
    return Learner(replace(config, **changes), device="cpu")


def pictures(labels: list[int], seed: int = 0) -> np.ndarray:
    """Noise around a colour that only the class has."""
    noise = np.random.default_rng(seed).integers(-40, 41, (len(labels), 8, 8, 3))
    return (np.array([SHADES[label] for label in labels])[:, None, None] + noise).astype(np.uint8)


def observe(learner: Learner, labels: list[int], seed: int = 0) -> StepReport:
    return learner.observe(pictures(labels, seed), labels)


def weights_equal(one: Learner, two: Learner) -> bool:
    pairs = zip(one.network.state_dict().values(), two.network.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


# What every method must do -----------------------------------------------------------------------------------------


@every_method
def test_a_method_is_created_by_its_name(name: str) -> None:
    method = methods.create(name)
    assert type(method) is methods.method_class(name)
    assert method.config == method.Config(**method.fixed)


@pytest.mark.slow
@every_method_with_a_loss
def test_a_step_lowers_the_loss_of_its_own_batch(name: str) -> None:
    # So small a step goes straight down, whatever the weights: the ratio was 0.81 to 0.9989 over 60 seeds, the same
    # with the kernels of SSE4.1 and AVX2 (AVX-512 was not tried). Learning at full speed may overshoot.
    learner = make_learner(
        name, lr=1e-6, views=False, replay=0, ema_decay=None
    )  # a teacher would move meanwhile
    first, second = (observe(learner, [0, 1, 0, 1, 2, 2]).loss for _ in range(2))
    assert second < 0.9999 * first


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("views", [True, False])
def test_a_single_image_is_a_batch(name: str, views: bool) -> None:
    learner = make_learner(name, views=views)
    reported = [observe(learner, [label]) for label in (0, 0, 1)]
    assert np.isfinite([report.loss for report in reported]).all()
    assert learner.predict(pictures([0])).scores.shape == (1, 2)


@pytest.mark.slow
@every_method_with_a_loss
def test_the_first_step_learns_although_the_memory_is_empty(name: str) -> None:
    learner = make_learner(name)
    before = learner.network.backbone.stem.weight.detach().clone()
    report = observe(learner, [0, 1, 1])
    assert report.replayed == 0 and np.isfinite(report.loss)
    assert not torch.equal(learner.network.backbone.stem.weight, before)


@pytest.mark.slow
@every_method
def test_old_and_new_classes_replay_together(name: str) -> None:
    learner = make_learner(name)
    reported = [observe(learner, labels, seed) for seed, labels in enumerate([[0, 1, 0], [1, 0, 1]])]
    learner.end_task()
    reported += [observe(learner, labels, seed) for seed, labels in enumerate([[2, 3], [3, 2]], 2)]
    assert np.isfinite([report.loss for report in reported]).all()
    replayed, drawn_at_random = (
        [r.replayed for r in reported],
        type(learner.method).choose_replay is Method.choose_replay,
    )
    if not learner.method.uses_memory:
        assert replayed == [0] * 4
    elif drawn_at_random:
        assert replayed == [0, 3, 4, 4]
    else:  # it may want more, or samples of earlier tasks only
        assert replayed[0] == 0 and 4 <= min(replayed[2:]) <= max(replayed) <= 8
    assert learner.predict(pictures([0, 3])).class_ids.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@every_method
def test_a_restored_method_has_its_options_and_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    options = {
        key: value * 2
        for key, value in methods.create(name).config_dict().items()
        if key in ("cycle", "alpha")
    }
    learner = make_learner(name, options)
    for seed, labels in enumerate([[0, 1], [1, 0]]):
        observe(learner, labels, seed)
    learner.end_task()
    for seed, labels in enumerate([[2, 0], [2, 1], [0, 2]], 2):
        observe(learner, labels, seed)
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert restored.config == learner.config
    assert type(restored.method) is type(learner.method) and restored.method.config == learner.method.config
    assert observe(restored, [1, 2], 7).loss == observe(learner, [1, 2], 7).loss
    for each in (restored, learner):
        each.end_task()
    assert observe(restored, [3, 2], 8).loss == observe(learner, [3, 2], 8).loss
    assert weights_equal(restored, learner)
    ids = [each.memory.ids().tolist() for each in (restored, learner)]
    assert ids[0] == ids[1]


@pytest.mark.slow
@every_method_with_a_loss
@pytest.mark.parametrize("held", [1, 3, 6])
def test_idle_time_rehearses_however_many_samples_are_held_also_after_a_restart(
    name: str, held: int, tmp_path: Path
) -> None:
    learner = make_learner(name, memory=MemoryConfig(samples=20))
    if not learner.method.uses_memory:
        return
    for seed in range(held):
        observe(learner, [seed % 2], seed)
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    for each in (learner, restored):
        report = each.rehearse()
        assert report is not None and np.isfinite(report.loss) and len(each.memory) == held
    assert weights_equal(learner, restored)


@pytest.mark.slow
@every_method_with_a_loss
def test_a_class_can_leave_between_two_steps(name: str) -> None:
    learner = make_learner(name)
    observe(learner, [0, 1, 2])
    learner.end_task()
    observe(learner, [3, 1, 2], 1)
    learner.drop_class(1)
    assert np.isfinite(
        [observe(learner, labels, seed).loss for seed, labels in enumerate([[0, 2], [3, 1]], 2)]
    ).all()
    assert learner.predict(pictures([0])).class_ids.tolist() == [0, 2, 3, 1]


@pytest.mark.slow
@every_method_with_a_loss
def test_all_that_a_method_keeps_counts_in_the_byte_budget(name: str) -> None:
    if not methods.method_class(name).uses_memory:
        return
    kept = make_learner(name).method.bytes()  # a second network is planned for from the start
    budget = kept + 12_000
    learner = make_learner(name, memory=MemoryConfig(bytes=budget))
    for seed, labels in enumerate([[0, 1, 0, 1]] * 6 + [[2, 3, 2, 3]] * 6):
        observe(learner, labels, seed)
        if seed == 5:
            learner.end_task()
        parts = learner.byte_breakdown()
        assert parts["method"] == learner.method.bytes() and parts["total"] <= budget
    assert 4 <= len(learner.memory) <= 12_000 // (8 * 8 * 3)


@pytest.mark.parametrize("name", ["ss_il", "ocm"])
def test_a_budget_smaller_than_the_second_network_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"beside \d+ bytes that the method keeps: raise the budget"):
        make_learner(name, memory=MemoryConfig(bytes=20_000))


@every_method
def test_who_hears_of_the_end_of_a_task_says_that_it_must(name: str) -> None:
    kind = methods.method_class(name)
    hears = kind.end_task is not Method.end_task
    options = {"review": True} if "review" in kind.options() else {}
    assert methods.create(name, options).needs_boundaries == hears


@every_method
def test_a_method_says_where_it_comes_from(name: str) -> None:
    assert len(methods.method_class(name).source) > 5


def layouts(learner: Learner) -> dict[str, tuple[Any, ...]]:
    """What decides, beside the values, which kernel computes a tensor: shape, strides, type and alignment."""
    assert learner.average is not None
    groups = {
        "network": learner.network.state_dict(),
        "average": learner.average.network.state_dict(),
        "optimiser": learner.optimiser.state(),
        "method": learner.method.state(),
    }
    return {
        f"{group}.{name}": (tuple(t.shape), t.stride(), t.dtype, t.data_ptr() % 64)
        for group, tensors in groups.items()
        for name, t in tensors.items()
    }


@pytest.mark.slow
@every_method
def test_a_restored_tensor_has_its_shape_layout_type_and_alignment(name: str, tmp_path: Path) -> None:
    learner = make_learner(name, optimiser="adam", lr=0.001)
    observe(learner, [0, 1, 1])
    expected, stem = layouts(learner), "backbone.stem.weight"
    assert expected[f"network.{stem}"][1] == (27, 1, 9, 3)
    if not learner.method.closed_form:
        assert expected[f"optimiser.{stem}.exp_avg"][1] == (27, 1, 9, 3)
        assert expected[f"optimiser.{stem}.step"][0] == ()
    learner.save(tmp_path / "checkpoint")
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert layouts(restored) == expected


@every_method
def test_an_unknown_option_is_refused_with_the_valid_ones(name: str) -> None:
    valid = sorted(methods.method_class(name).options())
    with pytest.raises(UserError) as error:
        methods.create(name, {"tau_hihg": 1.0})
    assert "'tau_hihg'" in str(error.value) and f"'{name}'" in str(error.value)
    assert str(error.value).endswith(f"it has {', '.join(valid)}" if valid else "it has none")


@every_method
def test_the_memory_keeps_what_the_method_needs_and_no_more(name: str) -> None:
    learner = make_learner(name)
    observe(learner, [0, 1, 1])
    method = learner.method
    kept = learner.memory.at(np.arange(len(learner.memory)))
    assert len(learner.memory) == (3 if method.uses_memory else 0)
    assert kept.logits.shape[1] == (2 if method.stores_logits else 0)
    assert kept.features.shape[1] == (learner.network.feature_size if method.stores_features else 0)


@every_method
def test_a_config_is_frozen_and_made_of_plain_values(name: str) -> None:
    config = methods.create(name).config
    assert type(config).__dataclass_params__.frozen
    assert all(type(value) in (int, float, str, bool) for value in asdict(config).values())


def test_an_unknown_method_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="'hpcrr'.*" + ", ".join(methods.names())):
        methods.create("hpcrr")


# How they are found -------------------------------------------------------------------------------------------------

PLUG_IN = """
from edge_hpcr.learner.methods import Batch, Method
from edge_hpcr.learner.losses import replay_cross_entropy

class Helper(Method):
    def loss(self, batch: Batch):
        return replay_cross_entropy(batch.logits, batch.labels)

class Ours(Helper):
    name = "{name}"
"""


def install(folder: Path, module: str, text: str) -> None:
    """What `pip install` leaves of a package that offers a module of methods."""
    (folder / f"{module}.py").write_text(text)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{methods.ENTRY_POINTS}]\n{module} = {module}\n")


def bench(method: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [
        "bench",
        "--dataset",
        "digits",
        "--method",
        method,
        "--limit",
        "10",
        "--out",
        str(folder / "runs"),
    ]
    return subprocess.run(
        [sys.executable, "-m", "edge_hpcr", *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["", str(folder)]), "OMP_NUM_THREADS": "1"},
        cwd=Path(methods.__file__).parents[3],
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_method_of_the_page_runs_from_an_installed_package_beside_a_broken_one_that_is_named(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "add-a-method.md").read_text()
    install(tmp_path, "er_focal", page.partition("```python\n")[2].partition("```")[0])
    install(tmp_path, "bad_plug_in", "import a_module_that_nobody_has")
    run = bench("er_focal", tmp_path)
    assert run.returncode == 0, run.stderr
    (result,) = (tmp_path / "runs").glob("digits-er_focal-*.json")
    assert json.loads(result.read_text())["method"] == "er_focal"
    refused = bench("bad_plug_in", tmp_path)
    assert refused.returncode == 2
    assert "plug-in 'bad_plug_in' cannot be loaded (ModuleNotFoundError" in refused.stderr.splitlines()[-1]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of installed packages; what was found is forgotten before and after."""
    monkeypatch.syspath_prepend(tmp_path)
    methods._found.cache_clear()
    yield tmp_path
    methods._found.cache_clear()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PLUG_IN.format(name="hpcr"), "ImportError: the name 'hpcr' is taken"),
        ("METHOD = 1", "has no subclass of Method with a name"),
        ("raise SystemError('no luck')", "SystemError: no luck"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named_and_disturbs_no_other(
    installed: Path, text: str, reason: str
) -> None:
    module = f"plug_in_{len(text)}"  # Python imports a module once
    install(installed, module, text)
    assert methods.method_class("hpcr") is HPCR
    with pytest.raises(UserError, match=f"unknown method 'x'.*plug-in '{module}' cannot be loaded.*{reason}"):
        methods.create("x")


def test_a_file_dropped_into_the_folder_is_found(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(installed)])
    (installed / "dropped.py").write_text(PLUG_IN.format(name="dropped"))
    assert methods.names()[-1] == "dropped"  # behind those that have a place in the tables
    assert methods.create("dropped").options() == set()


# What tells them apart ---------------------------------------------------------------------------------------------


def make_batch(distinct_samples: int = 20, known: tuple[int, ...] = (2, 2, 2, 3), step: int = 40) -> Batch:
    """Six incoming and four replayed rows of three classes; `known` is of the replayed rows' records."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Batch(
        inputs=torch.zeros(10, 3, 8, 8),
        logits=3 * normal(10, 3),
        features=(features := normal(10, 5)),
        sketches=features,
        labels=torch.tensor([0, 1, 2, 2, 2, 1, 0, 1, 0, 1]),
        incoming_rows=6,
        distinct_samples=distinct_samples,
        records=Records(3 * normal(4, 3), normal(4, 5), torch.tensor(known)),
        step=step,
        tau=0.09,
        ids=np.arange(3),
    )


def loss_of(name: str, batch: Batch, **options: Any) -> float:
    return methods.create(name, options).loss(batch).item()


def test_the_reference_rows_are_their_equations() -> None:
    batch = make_batch()
    cross_entropy = losses.replay_cross_entropy(batch.logits, batch.labels).item()
    contrastive = losses.supervised_contrastive(batch.features, batch.labels, 0.09).item()
    with_samples = losses.cross_entropy_with_samples(batch.logits, batch.features, batch.labels, 0.09).item()
    assert [loss_of(name, batch) for name in ("er", "finetune", "iid", "iid_pp")] == [cross_entropy] * 4
    assert loss_of("couple_1", batch) == pytest.approx(cross_entropy + contrastive)
    assert loss_of("couple_2", batch) == with_samples
    assert loss_of("pcr", batch) == losses.pcr(batch.logits, batch.labels).item()


def test_sample_pairs_enter_large_batches_only_unless_pcr_c_forces_them() -> None:
    small, large = make_batch(distinct_samples=59), make_batch(distinct_samples=60)
    proxies_alone = losses.pcr(small.logits, small.labels).item()
    with_pairs = losses.pcr_contrastive(small.logits, small.features, small.labels, 0.09).item()
    multiplier = losses.temperature_multiplier(40, 0.09, 500, 0.16, 0.05)
    assert with_pairs != pytest.approx(proxies_alone)
    assert loss_of("pcr_c", small) == loss_of("pcr_c", large) == with_pairs
    assert loss_of("pcr_ct", small) == pytest.approx(multiplier * proxies_alone)
    assert loss_of("pcr_ct", large) == pytest.approx(multiplier * with_pairs)
    assert loss_of("pcr_ct", small, smallest_batch=59) == pytest.approx(multiplier * with_pairs)
    as_printed = losses.pcr_contrastive(small.logits, small.features, small.labels, 0.09, joined=True).item()
    assert loss_of("pcr_c", small, pairs="joined") == as_printed != pytest.approx(with_pairs)
    # What was stored before there was a choice goes on as it was printed.
    assert methods.method_class("pcr_c").options_then({"smallest_batch": 0})["pairs"] == "joined"


def test_the_temperature_options_reach_the_loss() -> None:
    batch = make_batch(step=125)
    plain = losses.pcr(batch.logits, batch.labels).item()
    assert loss_of("pcr_ct", batch) == pytest.approx(plain * 0.09 / 0.105)
    assert loss_of("pcr_ct", batch, schedule="cosine") == pytest.approx(plain * (0.5625 + 1.8) / 2)
    assert loss_of("pcr_ct", batch, cycle=250) == pytest.approx(plain * 1.8)
    assert loss_of("pcr_ct", batch, tau_high=0.09, tau_low=0.09) == pytest.approx(plain)


def test_hpcr_is_the_sum_of_its_components_with_their_weights() -> None:
    batch = make_batch()
    base = loss_of("pcr_ct", batch)
    pcd, scd = HPCR().proxy_distillation(batch).item(), HPCR().sample_distillation(batch).item()
    assert pcd > 0 and scd > 0
    assert loss_of("pcr_ct_pcd", batch) == pytest.approx(base + 0.1 * pcd)
    assert loss_of("pcr_ct_pcd", batch, alpha=2.0) == pytest.approx(base + 2 * pcd)
    assert loss_of("hpcr", batch) == pytest.approx(base + 0.1 * pcd + 0.5 * scd)
    assert loss_of("hpcr", batch, alpha=0.0, beta=3.0) == pytest.approx(base + 3 * scd)


def test_distillation_is_over_the_replayed_rows_weighted_by_the_whole_batch() -> None:
    batch = make_batch()
    distances = (batch.logits[6:] - batch.records.logits) ** 2
    # The first three are older than class 2, which they did not know.
    counts = {0: 3, 1: 4, 2: 3}
    parts = {c: sum(n * distances[row, c].item() / 10 for row in (0, 1, 2)) / 4 for c, n in counts.items()}
    assert HPCR().proxy_distillation(batch).item() == pytest.approx(sum(parts.values()))
    known_alone = HPCR(Config(distil_new="none")).proxy_distillation(batch).item()
    assert known_alone == pytest.approx(parts[0] + parts[1])


def test_only_records_older_than_the_newest_class_are_distilled_unless_always_is_asked_for() -> None:
    batch = make_batch(known=(1, 3, 2, 3))
    assert HPCR().distillable(batch).tolist() == [True, False, True, False]
    assert HPCR(Config(distil="always")).distillable(batch).tolist() == [True] * 4
    nothing_new = make_batch(known=(3, 3, 3, 3))
    assert (
        loss_of("hpcr", nothing_new) == loss_of("pcr_ct_pcd", nothing_new) == loss_of("pcr_ct", nothing_new)
    )
    assert loss_of("hpcr", nothing_new, distil="always") > loss_of("hpcr", nothing_new)


STREAM = [[0, 1, 0, 1], [1, 0, 0, 1], [0, 0, 1, 1], [1, 1, 0, 0], [2, 3, 2, 3], [3, 2, 3, 2], [2, 2, 3, 3]]
FIRST_NEW_CLASS = 4


def losses_along_the_stream(learner: Learner) -> list[float]:
    return [observe(learner, labels, seed).loss for seed, labels in enumerate(STREAM)]


@pytest.mark.slow
def test_hpcr_without_distillation_weights_is_pcr_ct_bit_for_bit() -> None:
    without, plain = make_learner("hpcr", {"alpha": 0.0, "beta": 0.0}), make_learner("pcr_ct")
    assert losses_along_the_stream(without) == losses_along_the_stream(plain)
    assert weights_equal(without, plain)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hpcr", "pcr_ct_pcd"])
def test_distillation_begins_with_the_first_class_after_the_first_without_being_told(name: str) -> None:
    distilled = losses_along_the_stream(make_learner(name))
    plain = losses_along_the_stream(make_learner("pcr_ct"))
    assert distilled[:FIRST_NEW_CLASS] == plain[:FIRST_NEW_CLASS]
    assert distilled[FIRST_NEW_CLASS] > plain[FIRST_NEW_CLASS]


def test_iid_plus_plus_sees_twice_the_samples_in_as_many_steps() -> None:
    once, twice = methods.method_class("iid"), methods.method_class("iid_pp")
    assert (once.shuffled_passes, once.samples_per_step) == (1, 10)
    assert (twice.shuffled_passes, twice.samples_per_step) == (2, 20)
    assert (
        methods.method_class("finetune").shuffled_passes == methods.method_class("hpcr").shuffled_passes == 0
    )


# Classes that came after a record ------------------------------------------------------------------------------------


def test_a_record_gets_its_cosine_with_the_first_proxy_of_a_class_that_comes_later() -> None:
    learner = make_learner("hpcr")
    observe(learner, [0, 1, 0, 1])
    stored = learner.memory.at(np.arange(len(learner.memory)))
    column = learner.add_class(2)
    first = learner.network.proxies[column].detach().numpy().astype(np.float64)
    directions = stored.features.astype(np.float64)  # of length one, up to 16 bits
    expected = directions @ first / np.linalg.norm(first) / 0.09
    observe(learner, [2, 2], seed=3)  # the proxy moves, the records stay
    assert not np.allclose(learner.network.proxies[column].detach().numpy(), first, atol=1e-4)
    held = learner.memory.at(np.flatnonzero(np.isin(learner.memory.ids(), stored.ids)))
    order = [stored.ids.tolist().index(sample) for sample in held.ids.tolist()]
    np.testing.assert_allclose(held.logits[:, column], expected[order], rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(held.logits[:, :2], stored.logits[order])
    assert set(held.known.tolist()) == {2}


@pytest.mark.parametrize(("choice", "kept"), [("initial", True), ("zero", False), ("none", False)])
def test_only_the_initial_proxies_need_records_to_be_completed(choice: str, kept: bool) -> None:
    learner = make_learner("hpcr", {"distil_new": choice, "beta": 0.0})
    observe(learner, [0, 1, 0, 1])
    learner.add_class(2)
    held = learner.memory.at(np.arange(len(learner.memory)))
    assert bool(held.logits[:, 2].any()) == kept and (held.features.shape[1] > 0) == kept


def test_a_checkpoint_of_an_edition_without_the_option_goes_on_as_it_was(tmp_path: Path) -> None:
    learner = make_learner("hpcr", {"distil_new": "none"})
    observe(learner, [0, 1])
    learner.save(tmp_path / "new")
    learner.config = replace(learner.config, method_options={})
    learner.save(tmp_path / "old")
    arrays, facts = checkpoint.read(tmp_path / "old")
    del facts["method_options"]
    checkpoint.write(tmp_path / "old", arrays, facts)
    restored = [Learner.load(tmp_path / name, device="cpu")[0] for name in ("new", "old")]
    assert [each.method.config.distil_new for each in restored] == ["none", "none"]


def test_a_checkpoint_keeps_options_that_were_defaults_when_it_was_written(tmp_path: Path) -> None:
    learner = make_learner("hpcr")
    observe(learner, [0, 1])
    learner.save(tmp_path / "checkpoint")
    arrays, facts = checkpoint.read(tmp_path / "checkpoint")
    assert facts["config"]["method_options"] == {} and facts["method_options"]["cycle"] == 500
    facts["method_options"]["cycle"] = 300  # as an edition with another default would have written it
    checkpoint.write(tmp_path / "checkpoint", arrays, facts)
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert restored.method.config.cycle == 300 and restored.config == learner.config
