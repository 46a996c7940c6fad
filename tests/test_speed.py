"""The speed benchmark measures what it says, and its two contestants do the same work."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import speed, speed_parts
from benchmarks.plain_step import PlainMemory, PlainStep
from edge_hpcr.commands.cli import run
from edge_hpcr.learner.learner import Learner, LearnerConfig
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.precision import has_fast_bfloat16

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a quick run leaves behind, without CIFAR10 at hand."""
    folder = tmp_path_factory.mktemp("speed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGE_HPCR_DATA", str(folder / "no data"))
        assert run(speed.commands, "speed", ["--quick", "--out", str(folder / "made" / "speed.json")]) == 0
    assert "times as fast as plain" in (folder / "made" / "speed.md").read_text()
    return json.loads((folder / "made" / "speed.json").read_text())


def random_batch(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.integers(0, speed.CLASSES, count)


def contestants(**options: object) -> tuple[Learner, PlainStep]:
    """With equal weights and the same samples in memory."""
    config = LearnerConfig(method="hpcr", memory=MemoryConfig(samples=10), nf=8, **options)
    learner, plain = Learner(config, "cpu"), PlainStep(config, speed.CLASSES)
    speed.fill(learner, plain, *random_batch(np.random.default_rng(1), 40))
    plain.network.load_state_dict(learner.network.state_dict())
    return learner, plain


def test_a_quick_run_keeps_every_measurement(result: dict) -> None:
    assert result["hardware"] and result["finished"] and result["versions"]["torch"] == torch.__version__
    assert result["threads"] == 1 and result["plan"]["rounds"] == speed.QUICK.rounds
    assert len(result["load_average"]["start"]) == len(result["load_average"]["end"]) == 3
    assert "photographs" in result["images"]
    for step in result["step"].values():
        assert step["samples_per_second"] == pytest.approx(1e4 / step["ms"]["wall"]["median"])
    learners = ["ours", "ours, bfloat16"] if has_fast_bfloat16(torch.device("cpu")) else ["ours"]
    assert list(result["speedup"]) == learners and list(result["step"]) == [
        *learners,
        *result["edge"],
        "plain",
    ]
    assert 0 < result["codec"]["processor"]["median"] < 1  # of a step that does the same and more
    # Of 40 images as well; Muon adds a tenth, and a teacher a forward pass, which is a third of a step.
    counted = result["operations"]
    assert counted["edge with SGD"] == pytest.approx(1, abs=0.01)
    assert counted["edge"] == pytest.approx(1.1, abs=0.02)
    assert counted["edge with a teacher"] == pytest.approx(counted["edge"] + 1 / 3, abs=0.02)
    speedups = [ratio for clocks in result["speedup"].values() for ratio in clocks.values()]
    for ratio in (*speedups, *result["bound"]["share"].values()):
        assert 0 < ratio["q1"] <= ratio["median"] <= ratio["q3"]
    # 4 stages of 2 blocks of 2 convolutions, a stem and 3 shortcuts.
    assert sum(layer["times"] for layer in result["layers"]) == 20


def test_the_shares_of_a_step_add_up(result: dict) -> None:
    shares = result["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    assert all(share > 0 for share in shares.values())
    assert result["outside_network"] == pytest.approx(
        1 - shares["network forward"] - shares["network backward"]
    )


def test_the_network_of_the_paper_takes_13_gflop_a_step() -> None:
    network = PlainStep(LearnerConfig(), speed.CLASSES).network
    assert speed.step_flops(network) == pytest.approx(13.06e9, rel=0.005)


def test_both_contestants_take_the_same_step_when_they_see_the_same_images() -> None:
    learner, plain = contestants(views=False)
    before = {name: value.clone() for name, value in learner.network.named_parameters()}
    images, labels = random_batch(np.random.default_rng(2), speed.INCOMING)
    assert plain.observe(images, labels) == pytest.approx(learner.observe(images, labels).loss, abs=1e-4)

    ours, theirs = dict(learner.network.named_parameters()), dict(plain.network.named_parameters())
    moved = math.hypot(*(float((ours[name] - before[name]).detach().norm()) for name in before))
    apart = math.hypot(*(float((ours[name] - theirs[name]).detach().norm()) for name in before))
    assert moved > 1e-3
    # Not closer: where rounding turns a ReLU over, single gradients differ.
    assert apart < 0.02 * moved


def test_the_plain_step_moves_the_weights_with_views_and_a_finite_loss() -> None:
    _, plain = contestants()
    before = plain.network.backbone.stem.weight.detach().clone()
    images, labels = random_batch(np.random.default_rng(2), speed.INCOMING)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        losses = [plain.observe(images, labels) for _ in range(8)]
    assert np.isfinite(losses).all()
    assert not torch.equal(plain.network.backbone.stem.weight, before)
    assert plain.memory.seen == 10 + 8 * speed.INCOMING


def test_the_plain_step_is_plain() -> None:
    _, plain = contestants()
    assert all(parameter.is_contiguous() for parameter in plain.network.parameters())
    memory = plain.memory
    assert {rows.dtype for rows in (memory.images, memory.logits, memory.features)} == {torch.float32}


def test_rows_of_the_plain_memory_stay_together() -> None:
    memory = PlainMemory(7, (3, 2, 2), 4, 5)
    rng = np.random.default_rng(0)
    for start in range(0, 40, 8):
        number = torch.arange(start, start + 8)
        images = number.view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        memory.update(
            images, number, number.view(-1, 1).expand(-1, 5), number.view(-1, 1).expand(-1, 4), 5, rng
        )
    assert memory.held == 7 and memory.seen == 40
    assert memory.labels.max() > 8  # later samples got in
    for rows in (memory.images.flatten(1), memory.logits, memory.features):
        assert (rows == memory.labels[:, None]).all()
    assert len(set(memory.sample(5, rng).tolist())) == 5


def test_timing_a_step_leaves_the_learner_as_it_was() -> None:
    learner, _ = contestants()
    owners = (learner, learner.network, learner.memory, learner.method, learner.optimiser, learner.average)
    before, backward = [set(vars(owner)) for owner in owners], torch.Tensor.backward
    batches = iter([random_batch(np.random.default_rng(2), speed.INCOMING)])
    speed_parts.shares(learner, batches, 1)
    assert [set(vars(owner)) for owner in owners] == before
    assert torch.Tensor.backward is backward


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rounds", "0"], "--rounds '0' should be greater"),
        (["--threads", "0"], "--threads '0' should be greater"),
        (["--out", "FOLDER"], "name a .json file"),
        (["--out", "FOLDER/file/speed.json"], "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments]
    assert run(speed.commands, "speed", given) == 2
    message = capsys.readouterr().err
    assert complaint in message and message.count("\n") == 1
