"""A step in bfloat16: what it computes in it, what stays float32, and how a run says so."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_hpcr.bench import report
from edge_hpcr.bench.run import finished_result
from edge_hpcr.commands import bench
from edge_hpcr.commands.cli import run
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner.backbones.reduced_resnet18 import BasicBlock
from edge_hpcr.learner.learner import Learner, LearnerConfig, resolve_device
from edge_hpcr.learner.memory import MemoryConfig
from edge_hpcr.learner.precision import allow_tf32, computing_in, has_fast_bfloat16, resolve_precision
from edge_hpcr.learner.step import forward

CPU = torch.device("cpu")
SMALL = LearnerConfig(
    height=16, width=16, nf=8, method="hpcr", memory=MemoryConfig(samples=40), lr=0.01, compute="bfloat16"
)


def batch(seed: int, count: int = 10) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 16, 16, 3), np.uint8), rng.integers(0, 4, count)


def taught(config: LearnerConfig, steps: int = 3) -> Learner:
    learner = Learner(config, CPU)
    for seed in range(steps):
        learner.observe(*batch(seed))
    return learner


def of_a_block(compute: str, width_out: int, stride: int) -> list[torch.Tensor]:
    """Output and gradients of one block of the network, with the statistics of two groups."""
    torch.manual_seed(0)
    block = BasicBlock(8, width_out, stride).to(memory_format=torch.channels_last)
    images = torch.randn(12, 8, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    with computing_in(compute, CPU):
        output = block(images, [6, 6]).float()
    # What is zero on one side of a ReLU and hardly more on the other weighs nothing.
    output.square().sum().backward()
    return [output, images.grad, *(each.grad for each in block.parameters()), *block.buffers()]


@pytest.mark.computes
@pytest.mark.parametrize(("width_out", "stride"), [(8, 1), (16, 2)])
def test_a_block_s_gradients_and_statistics_are_float32_and_those_of_float32_up_to_rounding(
    width_out: int, stride: int
) -> None:
    with torch.random.fork_rng(devices=[]):
        pairs = zip(
            of_a_block("bfloat16", width_out, stride), of_a_block("float32", width_out, stride), strict=True
        )
    for rounded, exact in pairs:
        assert rounded.dtype == exact.dtype
        assert (rounded - exact).float().norm() <= 0.1 * exact.float().norm()


def gradient(compute: str) -> torch.Tensor:
    """Of all parameters, from the first step of the same learner."""
    learner = Learner(replace(SMALL, compute=compute), CPU)
    learner.observe(*batch(0, count=20))
    return torch.cat([parameter.grad.flatten() for parameter in learner.network.parameters()])


@pytest.mark.computes
def test_a_step_in_bfloat16_goes_where_a_step_in_float32_goes() -> None:
    rounded, exact = gradient("bfloat16"), gradient("float32")
    # Noise through 17 layers: rounding turns many a ReLU over, but a wrong gradient would point elsewhere.
    assert torch.cosine_similarity(rounded, exact, dim=0) > 0.8
    assert 0.8 < rounded.norm() / exact.norm() < 1.25
    assert not torch.equal(rounded, exact)


class Convolutions(TorchDispatchMode):
    """Notes the types that convolutions compute in."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "convolution" in func.__name__:
            self.types |= {each.dtype for each in args[:3] if isinstance(each, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", ["hpcr", "ocm", "onpro"])  # two whose rotated images are most of the step
@pytest.mark.parametrize(("compute", "expected"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)])
def test_a_step_computes_its_convolutions_in_the_precision_and_a_prediction_in_float32(
    compute: str, expected: torch.dtype, method: str
) -> None:
    learner = Learner(replace(SMALL, compute=compute, method=method), CPU)
    learner.observe(*batch(0))
    learner.end_task()
    with Convolutions() as learning:
        learner.observe(*batch(2))
    with Convolutions() as predicting:
        learner.predict(batch(1)[0])
    assert learning.types == {expected}
    assert predicting.types == {torch.float32}


def test_weights_statistics_proxies_losses_and_records_stay_float32() -> None:
    learner = taught(SMALL)
    inputs, columns = batch(9)
    step = forward(learner, inputs, columns, learner._choose_replay(inputs, columns))
    tensors = [step.features, step.logits, step.sketches, learner.method.loss(step)]
    tensors += [step.records.logits, step.records.features, *learner.network.state_dict().values()]
    tensors += learner.average.network.state_dict().values()
    assert {each.dtype for each in tensors if each.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "fast", "expected"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("float32", True, "float32"),
        ("bfloat16", False, "bfloat16"),  # emulated, as asked for
    ],
)
def test_auto_is_bfloat16_where_the_hardware_has_it(name: str, fast: bool, expected: str) -> None:
    assert resolve_precision(name, CPU, lambda device: fast) == expected


def test_a_learner_knows_what_auto_came_to() -> None:
    expected = resolve_precision("auto", CPU)
    assert Learner(replace(SMALL, compute="auto"), CPU).config.compute == expected


@pytest.mark.skipif(
    not Path("/proc/cpuinfo").exists(), reason="this system does not list what its processor can do"
)
def test_the_processor_has_bfloat16_where_the_system_lists_it() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    assert has_fast_bfloat16(CPU) == ("avx512_bf16" in flags or "amx_bf16" in flags)


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(UserError, match="unknown precision 'float16': choose one of auto, float32, bfloat16"):
        LearnerConfig(compute="float16")


@pytest.mark.computes
def test_a_learner_in_bfloat16_continues_from_a_checkpoint_bit_for_bit(tmp_path: Path) -> None:
    learner = taught(SMALL)
    learner.save(tmp_path / "saved")
    restored, _ = Learner.load(tmp_path / "saved", CPU)
    assert restored.config.compute == "bfloat16"
    for each in (learner, restored):
        for seed in range(3, 6):
            each.observe(*batch(seed))
    for ours, theirs in zip(
        learner.network.state_dict().values(), restored.network.state_dict().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_configuration_that_is_older_than_the_setting_is_float32() -> None:
    older = asdict(LearnerConfig())
    del older["compute"]
    assert LearnerConfig.from_dict(older).compute == "float32"


def test_tf32_is_left_alone_until_a_gpu_is_chosen() -> None:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        resolve_device("cpu")
        assert matmul.fp32_precision == before
        allow_tf32()
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


# The command ---------------------------------------------------------------------------------------------------------

DIGITS = ["--dataset", "digits", "--limit", "20", "--device", "cpu", "--set", "nf=4"]


def test_a_run_in_bfloat16_has_a_name_of_its_own_and_auto_is_resolved_before_it_starts() -> None:
    names = {}
    for precision in ("float32", "bfloat16", "auto"):
        (config,) = bench.configure([*DIGITS, "--precision", precision])
        names[precision] = config.name
    (without,) = bench.configure(DIGITS)
    assert names["float32"] == without.name
    assert "-bfloat16-" in names["bfloat16"]
    assert names["auto"] == names[resolve_precision("auto", CPU)]


def test_a_result_in_bfloat16_says_so_and_still_compares_with_the_paper(tmp_path: Path) -> None:
    options = [*DIGITS, "--precision", "bfloat16"]
    assert run(bench.commands, "bench", [*options, "--out", str(tmp_path)]) == 0
    (config,) = bench.configure(options)
    result = finished_result(config, tmp_path)
    assert result is not None and result["config"]["learner"]["compute"] == "bfloat16"
    assert report.deviations(result)["compute"] == "bfloat16"
    paper = json.loads(json.dumps(result))
    paper["dataset"] = paper["config"]["dataset"] = "cifar10"
    paper["config"] |= {"tasks": 5, "limit": None}
    paper["config"]["learner"] |= {"nf": 20, "height": 32, "width": 32}
    paper["config"]["method_options"]["alpha"] = 0.01
    (group,) = report.group([paper])
    assert "compute=bfloat16" in group.title
    assert group.paper("A_T").mean is not None


def test_a_wrong_precision_is_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(bench.commands, "bench", [*DIGITS, "--precision", "half", "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "unknown precision 'half'" in message and message.count("\n") == 1
