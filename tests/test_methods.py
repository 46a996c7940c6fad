"""What every method must do, run over all of them by name; and what tells the methods apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rival_parts import batch_of, loss_of, observe, pictures, rival

from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import checkpoint, losses, methods
from edge_hpcr.learner.learner import Learner
from edge_hpcr.learner.methods import Batch, Method
from edge_hpcr.learner.methods.hpcr import HPCR, Config
from edge_hpcr.live.live_learner import learner_config
from edge_hpcr.workspace.settings import Settings

pytestmark = pytest.mark.computes

every_method = pytest.mark.parametrize("name", methods.names())


# What every method must do -----------------------------------------------------------------------------------------


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("views", [True, False])
def test_a_single_image_is_a_batch(name: str, views: bool) -> None:
    learner = rival(name, views=views)
    reported = [observe(learner, [label]) for label in (0, 0, 1)]
    assert np.isfinite([report.loss for report in reported]).all()
    assert learner.predict(pictures([0])).scores.shape == (1, 2)


@pytest.mark.slow
@every_method
def test_old_and_new_classes_replay_together(name: str) -> None:
    learner = rival(name)
    reported = [observe(learner, labels, seed) for seed, labels in enumerate([[0, 1, 0], [1, 0, 1]])]
    learner.end_task()
    reported += [observe(learner, labels, seed) for seed, labels in enumerate([[2, 3], [3, 2]], 2)]
    assert np.isfinite([report.loss for report in reported]).all()
    replayed, drawn_at_random = (
        [r.replayed for r in reported],
        type(learner.method).choose_replay is Method.choose_replay,
    )
    if not learner.method.uses_memory or learner.method.closed_form:
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
    learner = rival(name, options)
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
    restored.predict(pictures([0, 1, 2]))  # must take none of the random numbers that learning goes on with
    for each in (restored, learner):
        each.end_task()
    assert observe(restored, [3, 2], 8).loss == observe(learner, [3, 2], 8).loss
    learner.predict(pictures([0, 1, 2]))  # SCR's proxies are the class means that its last prediction made
    restored.predict(pictures([0, 1, 2]))
    for value, other in zip(
        restored.network.state_dict().values(), learner.network.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other)
    ids = [each.memory.ids().tolist() for each in (restored, learner)]
    assert ids[0] == ids[1]


# How they are found -------------------------------------------------------------------------------------------------


def test_the_method_of_the_page_is_found_in_its_file_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "add-a-method.md").read_text()
    (tmp_path / "er_focal.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    methods._found.cache_clear()
    request.addfinalizer(methods._found.cache_clear)
    learner = rival("er_focal", {"gamma": 1.0})
    observe(learner, [0, 1, 0, 1])
    assert observe(learner, [0, 1, 0, 1], seed=1).replayed > 0
    assert "er_focal" in methods.live_names()


# In a live workspace --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [each for each in methods.names() if methods.method_class(each).needs_boundaries]
)
def test_a_method_that_must_hear_of_tasks_is_refused_in_a_live_workspace(name: str) -> None:
    with pytest.raises(UserError, match=f"setting method {name}: it needs to know where a task ends"):
        learner_config(Settings(method=name))


# What tells them apart ---------------------------------------------------------------------------------------------


def batch_of_three(distinct_samples: int = 20) -> Batch:
    """Of three classes; the first three of the replayed rows did not know the last one."""
    batch = batch_of([0, 1, 2, 2, 2, 1], [0, 1, 0, 1], known=[2, 2, 2, 3], classes=3)
    return replace(batch, distinct_samples=distinct_samples, step=40)


def test_the_reference_rows_are_their_equations() -> None:
    batch = batch_of_three()
    cross_entropy = losses.replay_cross_entropy(batch.logits, batch.labels).item()
    contrastive = losses.supervised_contrastive(batch.features, batch.labels, 0.09).item()
    with_samples = losses.cross_entropy_with_samples(batch.logits, batch.features, batch.labels, 0.09).item()
    assert [loss_of(name, batch) for name in ("er", "finetune", "iid", "iid_pp")] == [cross_entropy] * 4
    assert loss_of("couple_1", batch) == pytest.approx(cross_entropy + contrastive)
    assert loss_of("couple_2", batch) == with_samples
    assert loss_of("pcr", batch) == losses.pcr(batch.logits, batch.labels).item()


def test_sample_pairs_enter_large_batches_only_unless_pcr_c_forces_them() -> None:
    small, large = batch_of_three(distinct_samples=59), batch_of_three(distinct_samples=60)
    proxies_alone = losses.pcr(small.logits, small.labels).item()
    with_pairs = losses.pcr_contrastive(small.logits, small.features, small.labels, 0.09).item()
    multiplier = losses.temperature_multiplier(40, 0.09, 500, 0.16, 0.05)
    assert with_pairs != pytest.approx(proxies_alone)
    assert loss_of("pcr_c", small) == loss_of("pcr_c", large) == with_pairs
    assert loss_of("pcr_ct", small) == pytest.approx(multiplier * proxies_alone)
    assert loss_of("pcr_ct", large) == pytest.approx(multiplier * with_pairs)
    assert loss_of("pcr_ct", small, smallest_batch=59) == pytest.approx(multiplier * with_pairs)


def test_hpcr_is_the_sum_of_its_components_with_their_weights() -> None:
    batch = batch_of_three()
    base = loss_of("pcr_ct", batch)
    pcd, scd = HPCR().proxy_distillation(batch).item(), HPCR().sample_distillation(batch).item()
    assert pcd > 0 and scd > 0
    assert loss_of("pcr_ct_pcd", batch) == pytest.approx(base + 0.1 * pcd)
    assert loss_of("pcr_ct_pcd", batch, alpha=2.0) == pytest.approx(base + 2 * pcd)
    assert loss_of("hpcr", batch) == pytest.approx(base + 0.1 * pcd + 0.5 * scd)
    assert loss_of("hpcr", batch, alpha=0.0, beta=3.0) == pytest.approx(base + 3 * scd)


def test_distillation_is_over_the_replayed_rows_weighted_by_the_whole_batch() -> None:
    batch = batch_of_three()
    distances = (batch.logits[6:] - batch.records.logits) ** 2
    # The first three are older than class 2, which they did not know.
    counts = {0: 3, 1: 4, 2: 3}
    parts = {c: sum(n * distances[row, c].item() / 10 for row in (0, 1, 2)) / 4 for c, n in counts.items()}
    assert HPCR().proxy_distillation(batch).item() == pytest.approx(sum(parts.values()))
    known_alone = HPCR(Config(distil_new="none")).proxy_distillation(batch).item()
    assert known_alone == pytest.approx(parts[0] + parts[1])


# Classes that came after a record ------------------------------------------------------------------------------------


def test_a_record_gets_its_cosine_with_the_first_proxy_of_a_class_that_comes_later() -> None:
    learner = rival("hpcr")
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


def test_a_checkpoint_keeps_options_that_were_defaults_when_it_was_written(tmp_path: Path) -> None:
    learner = rival("hpcr")
    observe(learner, [0, 1])
    learner.save(tmp_path / "checkpoint")
    arrays, facts = checkpoint.read(tmp_path / "checkpoint")
    assert facts["config"]["method_options"] == {} and facts["method_options"]["cycle"] == 500
    facts["method_options"]["cycle"] = 300  # as an edition with another default would have written it
    checkpoint.write(tmp_path / "checkpoint", arrays, facts)
    restored, _ = Learner.load(tmp_path / "checkpoint", device="cpu")
    assert restored.method.config.cycle == 300 and restored.config == learner.config
