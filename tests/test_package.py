"""The interface for programs: what `edge_hpcr` offers, and the example of README."""

import re
from pathlib import Path

import edge_hpcr

ROOT = Path(__file__).parent.parent


def test_every_name_that_it_offers_is_there() -> None:
    for name in ("Learner", "LearnerConfig", "MemoryConfig", "Workspace"):
        assert getattr(edge_hpcr, name).__name__ == name


def test_the_example_in_the_readme_runs(tmp_path: Path, monkeypatch) -> None:
    (example,) = re.findall(r"```python\n(.+?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example, names)
    assert set(names["answer"].best) <= {3, 8}
    assert names["learner"].step == 1
