"""The skeleton keeps its promises: what is installed where, what make does, and which way imports point."""

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TOP_LEVEL = (
    ".ci/run",
    ".dockerignore",
    ".gitignore",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "app/__init__.py",
    "docs",
    "edge_hpcr/__init__.py",
    "export/__init__.py",
    "pyproject.toml",
    "requirements-dev.txt",
    "requirements.txt",
    "results",
    "tests",
)

LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
MACHINES = {
    "Linux x86_64": LINUX | {"platform_machine": "x86_64"},
    "Linux ARM": LINUX | {"platform_machine": "aarch64"},
    "Apple silicon": {
        "sys_platform": "darwin",
        "platform_system": "Darwin",
        "os_name": "posix",
        "platform_machine": "arm64",
    },
}
CUDA = re.compile(r"^(nvidia|cuda|triton)\b|gpu|-cu\d+$")

# The one machine the tests run on has one of the two pinned torches installed; what the other's wheel asks for
# is recorded here, as `pip install --dry-run --report` shows it. Requirements of extras are left out.
TORCH_NEEDS = {
    "2.15.0": """
        filelock
        typing-extensions>=4.13.0
        setuptools>=77.0.3
        sympy>=1.13.3
        networkx>=2.5.1
        jinja2
        fsspec>=0.8.5
        cuda-toolkit[cublas,cudart,cufft,cufile,cupti,cusolver,cusparse,nvjitlink,nvrtc,nvtx]==13.2.2; {linux}
        cuda-bindings<14,>=13.0.3; {linux} and python_version < "3.15"
        nvidia-cudnn-cu13==9.26.0.51; {linux}
        nvidia-cusparselt-cu13==0.8.1; {linux}
        nvidia-nccl-cu13==2.30.7; {linux}
        nvidia-nvshmem-cu13==3.7.2; {linux}
        triton~=3.9.0; {linux} and python_version < "3.16"
    """.replace("{linux}", 'platform_system == "Linux"'),
    "2.10.0": """
        filelock
        typing-extensions>=4.10.0
        setuptools; python_version >= "3.12"
        sympy>=1.13.3
        networkx>=2.5.1
        jinja2
        fsspec>=0.8.5
        cuda-bindings==12.9.4; {linux_x86}
        nvidia-cuda-nvrtc-cu12==12.8.93; {linux_x86}
        nvidia-cuda-runtime-cu12==12.8.90; {linux_x86}
        nvidia-cuda-cupti-cu12==12.8.90; {linux_x86}
        nvidia-cudnn-cu12==9.10.2.21; {linux_x86}
        nvidia-cublas-cu12==12.8.4.1; {linux_x86}
        nvidia-cufft-cu12==11.3.3.83; {linux_x86}
        nvidia-curand-cu12==10.3.9.90; {linux_x86}
        nvidia-cusolver-cu12==11.7.3.90; {linux_x86}
        nvidia-cusparse-cu12==12.5.8.93; {linux_x86}
        nvidia-cusparselt-cu12==0.7.1; {linux_x86}
        nvidia-nccl-cu12==2.27.5; {linux_x86}
        nvidia-nvshmem-cu12==3.4.5; {linux_x86}
        nvidia-nvtx-cu12==12.8.90; {linux_x86}
        nvidia-nvjitlink-cu12==12.8.93; {linux_x86}
        nvidia-cufile-cu12==1.13.1.3; {linux_x86}
        triton==3.6.0; {linux_x86}
    """.replace("{linux_x86}", 'platform_system == "Linux" and platform_machine == "x86_64"'),
}

# The lower floors of the package know nothing of the upper ones.
LOWER = ("augment", "checkpoint", "codec", "ema", "errors", "losses", "memory", "network", "optimise", "rows")
UPPER = ("bench", "bench_command", "cli", "data", "learner", "report", "speed", "split")


def requirements(file: str) -> list[Requirement]:
    lines = (line.strip() for line in (ROOT / file).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-r "))]


def applies(requirement: Requirement, machine: str) -> bool:
    environment = default_environment() | MACHINES[machine] | {"extra": ""}
    return requirement.marker is None or requirement.marker.evaluate(environment)


def recorded_torch(version: str) -> list[Requirement]:
    return [Requirement(line.strip()) for line in TORCH_NEEDS[version].strip().splitlines()]


def needs(requirement: Requirement) -> list[Requirement]:
    """What the package itself asks for: torch's as recorded for the pinned version, the others' as installed."""
    if requirement.name == "torch" and requirement.specifier:
        return recorded_torch(str(requirement.specifier).removeprefix("=="))
    try:
        lines = metadata.requires(requirement.name) or []
    except metadata.PackageNotFoundError:
        return []  # not for this machine; its name is what counts
    return [Requirement(line) for line in lines]


def installed_on(machine: str) -> set[str]:
    """The names of all packages that `requirements.txt` brings to that machine, directly or not."""
    waiting = [r for r in requirements("requirements.txt") if applies(r, machine)]
    pinned = {r.name: r for r in waiting}
    names: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in names:
            names.add(name)
            waiting += [r for r in needs(pinned.get(name, requirement)) if applies(r, machine)]
    return names


def imports_of(path: Path) -> set[str]:
    """Every module a file imports when it runs, anywhere in it, by its full name."""
    package = path.relative_to(ROOT).parent.parts
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text(), str(path))]
    while waiting:
        node = waiting.pop()
        only_for_types = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        waiting += node.orelse if only_for_types else ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def offences(files: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in sorted(imports_of(path))
        if any(name == module or name.startswith(f"{module}.") for module in forbidden)
    ]


def own_files() -> list[Path]:
    """Every file of the project, without asking git: a downloaded archive must pass its tests too."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()} | {".git"}
    found: list[Path] = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in ignored]
        found += [Path(folder, name) for name in files]
    return found


def outside_make() -> dict[str, str]:
    """The environment without what the make that runs these tests would hand down to another one."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}


def make(*arguments: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", f"PYTHON={sys.executable}", *arguments],
        cwd=at,
        env=outside_make() | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The project as a fresh clone has it for make: no .venv yet. The requirements are empty, so pip needs no network."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "requirements-dev.txt").touch()
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "requirements.txt").touch()
    return tmp_path


def test_the_top_level_is_complete():
    assert [name for name in TOP_LEVEL if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt", "export/requirements.txt"])
def test_every_requirement_is_pinned_to_one_exact_version(file: str):
    pins = {str(requirement): str(requirement.specifier) for requirement in requirements(file)}
    assert pins
    assert [name for name, pin in pins.items() if not re.fullmatch(r"==\d+(\.\d+)+", pin)] == []


@pytest.mark.parametrize("machine", MACHINES)
def test_a_device_has_the_versions_that_the_trainer_tried_its_models_with(machine: str):
    trainers = {r.name: r.specifier for r in requirements("requirements.txt") if applies(r, machine)}
    trainers.setdefault("onnxruntime", trainers.get("onnxruntime-gpu"))  # the same, built with CUDA
    devices = {r.name: r.specifier for r in requirements("export/requirements.txt")}
    assert set(devices) == {"numpy", "opencv-python-headless", "onnxruntime"}
    assert devices == {name: trainers[name] for name in devices}


def test_the_dev_requirements_build_on_those_for_running():
    assert "-r requirements.txt" in (ROOT / "requirements-dev.txt").read_text().splitlines()


@pytest.mark.parametrize("machine", MACHINES)
def test_every_package_is_named_once_on_every_machine(machine: str):
    names = [r.name for r in requirements("requirements.txt") if applies(r, machine)]
    assert len(names) == len(set(names))
    assert {"torch", "torchvision", "numpy"} <= set(names)


@pytest.mark.parametrize("machine", ["Apple silicon", "Linux ARM"])
def test_no_cuda_package_comes_to_a_mac_or_an_arm_machine(machine: str):
    names = installed_on(machine)
    assert {"torch", "sympy", "mpmath"} <= names, "the walk must reach the requirements of requirements"
    assert sorted(name for name in names if CUDA.search(name)) == []


def test_the_newest_torch_with_cuda_comes_to_linux_on_x86_64():
    assert {"nvidia-cudnn-cu13", "cuda-toolkit", "triton"} <= installed_on("Linux x86_64")


def test_arm_has_a_torch_of_its_own_only_because_the_newest_one_would_bring_cuda_there():
    newest = next(
        r for r in requirements("requirements.txt") if r.name == "torch" and applies(r, "Linux x86_64")
    )
    brought = [r.name for r in needs(newest) if applies(r, "Linux ARM") and CUDA.search(r.name)]
    assert brought, "torch no longer brings CUDA to Linux ARM: one pin for all machines is enough"


def test_the_recorded_needs_of_torch_are_those_of_the_installed_wheel():
    installed = [Requirement(line) for line in metadata.requires("torch") or [] if "extra ==" not in line]
    version = metadata.version("torch").partition("+")[0]
    assert {str(r) for r in installed} == {str(r) for r in recorded_torch(version)}


def test_the_installed_packages_are_the_pinned_ones():
    wanted = [*requirements("requirements.txt"), *requirements("requirements-dev.txt")]
    here = {r.name: str(r.specifier) for r in wanted if r.marker is None or r.marker.evaluate()}
    assert {name: f"=={metadata.version(name)}".partition("+")[0] for name in here} == here


def test_no_file_names_a_package_registry_by_its_address():
    # Put together here, so that this file does not name them either.
    hosts = [b".".join(parts) for parts in ((b"pypi", b"org"), (b"pythonhosted", b"org"), (b"npmjs", b"org"))]
    hosts += [b".".join(parts) for parts in ((b"debian", b"org"), (b"download", b"pytorch", b"org"))]
    option = re.compile(rb"(index-url|find-links|--registry|trusted-host)[= ]+\S*[/.]")
    files = own_files()
    assert ROOT / "requirements.txt" in files
    named = [
        str(path.relative_to(ROOT))
        for path in files
        if any(host in (text := path.read_bytes()) for host in hosts) or option.search(text)
    ]
    assert named == []


def test_edge_hpcr_imports_neither_the_app_nor_the_export_but_for_the_one_resize_rule():
    """Devices have no edge_hpcr, and a second copy of the rule would drift away from the first."""
    found = offences(sorted((ROOT / "edge_hpcr").rglob("*.py")), ("app", "export"))
    assert found
    assert all(re.search(r"imports export\.preprocess(\.prepare)?$", offence) for offence in found), found


def test_the_resize_rule_that_everybody_shares_imports_next_to_nothing():
    assert imports_of(ROOT / "export" / "preprocess.py") <= {"cv2", "numpy"}


def test_the_lower_modules_and_the_methods_do_not_import_the_upper_ones():
    files = [ROOT / "edge_hpcr" / f"{name}.py" for name in LOWER]
    methods = sorted((ROOT / "edge_hpcr" / "methods").glob("*.py"))
    assert methods
    assert offences([*files, *methods], tuple(f"edge_hpcr.{name}" for name in UPPER)) == []


def test_imports_follow_the_way_of_a_sample():
    """Stream, gate, queue, journal, learner: whoever comes earlier knows nothing of whoever comes later."""
    package = ROOT / "edge_hpcr"
    way = [
        [*(package / "streams").glob("*.py"), package / "images.py"],
        [package / "gate.py", package / "label_queue.py"],
        sorted((package / "workspace").glob("*.py")),
        sorted((package / "live").glob("*.py")),
        [package / "learn_command.py", package / "workspace_command.py"],
    ]
    names = [
        ("edge_hpcr.stream",),
        ("edge_hpcr.stream.gate", "edge_hpcr.workspace.label_queue"),
        ("edge_hpcr.workspace",),
        ("edge_hpcr.live",),
        ("edge_hpcr.commands.learn", "edge_hpcr.commands.workspace", "benchmarks.endurance"),
    ]
    for place, files in enumerate(way):
        later = tuple(name for group in names[place + 1 :] for name in group)
        assert files and offences(files, later) == []


def test_every_package_the_program_imports_is_a_requirement_of_its_own():
    packages = ("edge_hpcr", "app", "export")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    modules = {name.partition(".")[0] for path in files for name in imports_of(path)}
    outside = modules - sys.stdlib_module_names - set(packages)
    assert {"torch", "numpy"} <= outside
    bringers = metadata.packages_distributions()
    pinned = {canonicalize_name(r.name) for r in requirements("requirements.txt")}
    missing = {m for m in outside if pinned.isdisjoint(map(canonicalize_name, bringers.get(m, [])))}
    assert missing == set()


def test_make_alone_lists_the_targets(bare: Path):
    listed = re.findall(r"^  make ([a-z-]+) +\S", make(at=bare).stdout, re.MULTILINE)
    assert {"run", "test", "check", "bench", "install-device", "clean"} <= set(listed)


def test_make_run_installs_and_then_starts_the_app(bare: Path):
    steps = make("-n", "run", at=bare).stdout.splitlines()
    install = next(
        i for i, step in enumerate(steps) if "pip install" in step and "-r requirements.txt" in step
    )
    app = steps.index(".venv/bin/python -m app")
    assert "-m venv" in " ".join(steps[:install])
    assert install < app == len(steps) - 1
    assert "requirements-dev.txt" not in " ".join(steps)


def test_make_test_installs_checks_and_then_tests(bare: Path):
    steps = "\n".join(make("-n", "test", at=bare).stdout.splitlines())
    order = [
        "-m venv",
        "-r requirements.txt",
        "-r requirements-dev.txt",
        "ruff check",
        "ruff format --check",
        "mypy",
    ]
    places = [steps.index(step) for step in [*order, "-m pytest"]]
    assert places == sorted(places)


def test_make_bench_measures_the_step_the_models_the_app_and_the_endurance(bare: Path):
    assert make("-n", "bench", at=bare).stdout.splitlines()[-5:] == [
        ".venv/bin/python -m edge_hpcr speed --out results/speed.json",
        ".venv/bin/python -m export bench --out results/latency.json",
        "PYTHONPATH=. .venv/bin/python tests/device_bench.py --out results/device.json",
        "PYTHONPATH=. .venv/bin/python tests/app_bench.py --out results/app.json",
        ".venv/bin/python -m edge_hpcr endure all --out results/endurance.json",
    ]


def test_an_installation_is_remembered_once_it_is_whole_and_until_something_changes(bare: Path):
    interpreter = bare / ".venv" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to("/no/such/python")
    (bare / ".venv" / ".installed").touch()
    (bare / "requirements.txt").write_text("./no-such-package\n")
    failed = make("install", at=bare)
    assert subprocess.run([interpreter, "-m", "pip", "--version"], check=False).returncode == 0, (
        "a venv whose interpreter has gone must be made anew"
    )
    assert failed.returncode != 0
    assert "no-such-package" in failed.stderr
    assert "pip install" in make("-n", "run", at=bare).stdout, "a failed installation must be taken up again"

    (bare / "requirements.txt").write_text("")
    assert make("install-dev", at=bare).returncode == 0
    for target in ("run", "test"):
        assert "pip" not in make("-n", target, at=bare).stdout, (
            f"the second `make {target}` must start at once"
        )

    newer = (bare / ".venv" / ".installed-dev").stat().st_mtime + 10
    os.utime(bare / "requirements-dev.txt", (newer, newer))
    assert "pip" not in make("-n", "run", at=bare).stdout
    assert "-r requirements-dev.txt" in make("-n", "test", at=bare).stdout
    os.utime(bare / "requirements.txt", (newer, newer))
    assert "-r requirements.txt" in make("-n", "run", at=bare).stdout


def test_a_device_gets_a_venv_of_its_own_with_its_own_requirements(bare: Path):
    (bare / "export" / "requirements.txt").write_text("./no-such-package\n")
    failed = make("install-device", at=bare)
    assert failed.returncode != 0 and "no-such-package" in failed.stderr
    (bare / "export" / "requirements.txt").write_text("")
    assert "-r export/requirements.txt" in make("-n", "install-device", at=bare).stdout
    assert make("install-device", at=bare).returncode == 0
    interpreter = bare / ".venv-device" / "bin" / "python"
    assert subprocess.run([interpreter, "-m", "pip", "--version"], check=False).returncode == 0
    assert not (bare / ".venv").exists(), "the trainer's gigabytes stay away"
    assert "pip" not in make("-n", "install-device", at=bare).stdout, "a second time there is nothing to do"
    make("clean", at=bare)
    assert not (bare / ".venv-device").exists()


@pytest.mark.parametrize("python", ["too old", "missing"])
def test_a_python_that_is_too_old_or_missing_is_refused_in_one_line(bare: Path, python: str):
    (bare / "sitecustomize.py").write_text("import sys\nsys.version_info = (3, 10, 4, 'final', 0)\n")
    if python == "too old":
        refused = make("run", at=bare, PYTHONPATH=str(bare))
    else:
        refused = make("run", "PYTHON=no-such-python", at=bare)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "Python 3.11 or newer is needed" in refused.stderr
    assert not (bare / ".venv").exists()


@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize("outcome", ["true", "false"])
def test_ci_runs_make_test_and_removes_only_the_venv_it_made(
    tmp_path: Path, there_before: bool, outcome: str
):
    (tmp_path / ".ci").mkdir()
    run = Path(shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci"))
    (tmp_path / "Makefile").write_text(f"test:\n\t@mkdir -p .venv && echo 3 passed in 1s && {outcome}\n")
    if there_before:
        (tmp_path / ".venv").mkdir()
    assert os.access(run, os.X_OK)
    ended = subprocess.run([run], capture_output=True, text=True, check=False, env=outside_make())
    assert ended.stdout.splitlines()[-1] == "3 passed in 1s"
    assert (ended.returncode == 0) == (outcome == "true")
    assert (tmp_path / ".venv").exists() == there_before
