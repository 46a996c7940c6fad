"""Reads what `bench` left, and checks it before tables and plots are made of it."""

import json
from pathlib import Path
from types import NoneType
from typing import Any

from edge_hpcr.bench import analyses, metrics, report, teach_report
from edge_hpcr.bench.datasets import DATASETS
from edge_hpcr.common.errors import UserError
from edge_hpcr.learner import methods

_NUMBER = (int, float)
_MISSING = object()
# Everything that a table or a plot reads, where it is, and what it must be.
_NEEDED: dict[tuple[str, ...], Any] = {
    ("dataset",): str,
    ("method",): str,
    ("seed",): int,
    ("finished",): str,
    ("accuracy_matrix",): list,
    ("ema_accuracy_matrix",): list,
    ("class_accuracy",): list,
    ("buffer_samples",): int,
    ("bytes", "total"): int,
    ("overhead", "numbers"): _NUMBER,
    ("overhead", "bytes"): _NUMBER,
    ("samples_per_second",): _NUMBER,
    ("step_ms", "p50"): _NUMBER,
    ("step_ms", "p95"): _NUMBER,
    ("train_seconds",): _NUMBER,
    ("ema",): (dict, NoneType),
    **{(metric,): _NUMBER for metric in ("A_T", "AAA", "F_T")},
    **{("config", key): (int, NoneType) for key in ("tasks", "limit", "threads")},
    ("config", "validation"): bool,
    ("config", "device"): str,
    ("config", "method_options"): dict,
    ("config", "learner", "augment"): dict,
    ("config", "learner", "memory", "samples"): (int, NoneType),
    ("config", "learner", "memory", "bytes"): (int, NoneType),
    ("config", "learner", "memory", "codec"): str,
    ("config", "learner", "memory", "quality"): int,
    ("config", "learner", "memory", "precision"): str,
    **{("versions", key): str for key in ("hardware", "python", "torch", "numpy", "edge_hpcr", "device")},
    ("versions", "threads"): int,
}


def read_folders(folders: list[Path]) -> tuple[dict[Path, dict[str, Any]], list[str]]:
    """The finished runs by file, and what was left out and why. A run that is there twice counts once."""
    found: dict[Path, dict[str, Any]] = {}
    left_out: list[str] = []
    for folder in dict.fromkeys(folders):
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder; name the one that `bench` wrote to with --out")
        for path in sorted(folder.glob("*.json")):
            try:
                found[path] = _read_any(path)
            except UserError as error:
                left_out.append(str(error))
        for path in sorted(folder.glob("*.checkpoint")):
            if not path.with_suffix(".json").exists():
                left_out.append(
                    f"{path}: this run is under way or was stopped; the same `bench` command continues it"
                )
    return _once_each(found, left_out), left_out


def _once_each(found: dict[Path, dict[str, Any]], left_out: list[str]) -> dict[Path, dict[str, Any]]:
    """Of the runs of one setting with one seed the latest: the same seed twice is no second observation."""
    latest: dict[tuple[Any, ...], Path] = {}
    for path, result in found.items():
        key: tuple[Any, ...]
        if teach_report.is_lesson(result):
            key = (teach_report.lesson_key(result), result["seed"], result["draw"])
        elif analyses.is_analysis(result):
            key = (analyses.KIND, result["analysis"], result["version"])
        else:
            one = report.Group((result,))
            key = (one.dataset, one.name, result["seed"])
        other = latest.get(key)
        if other is None:
            latest[key] = path
            continue
        older, newer = sorted((other, path), key=lambda candidate: found[candidate]["finished"])
        latest[key] = newer
        left_out.append(f"{older}: the same run is in {newer}, as late or later")
    kept = set(latest.values())
    return {path: result for path, result in found.items() if path in kept}


def _read_any(path: Path) -> dict[str, Any]:
    """A finished run of `bench` or of `bench teach`, or what `bench analyse` measured."""
    result = _read_json(path)
    if teach_report.is_lesson(result):
        teach_report.check(path, result)
    elif analyses.is_analysis(result):
        analyses.check(path, result)
    else:
        return read_result(path)
    return result


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(
            f"{path}: damaged, not readable as JSON; the same `bench` command with --fresh makes it again"
        ) from None


def read_result(path: Path) -> dict[str, Any]:
    """A finished run of `bench`, checked; UserError says what is wrong with the file."""
    result = _read_json(path)
    if not isinstance(result, dict) or not {"dataset", "method", "accuracy_matrix", "finished"} <= set(
        result
    ):
        raise UserError(f"{path}: not a finished run of `bench`")
    for place, kind in _NEEDED.items():
        value: Any = result
        for key in place:
            value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        if not isinstance(value, kind):
            raise UserError(f"{path}: damaged, or of another version: {'.'.join(place)} is missing or wrong")
    if "backbone" in result["config"]["learner"] and not isinstance(result.get("trunk_ms"), _NUMBER):
        raise UserError(f"{path}: damaged, or of another version: trunk_ms is missing or wrong")
    if result["dataset"] not in DATASETS or result["method"] not in methods.names():
        raise UserError(f"{path}: {result['method']} on {result['dataset']} is unknown to this version")
    _check_numbers(path, result)
    return result


def _check_numbers(path: Path, result: dict[str, Any]) -> None:
    """The matrices are whole and the measures follow from them."""
    matrix = result["accuracy_matrix"]
    consistent = _is_triangle(matrix) and _agrees(result, matrix)
    if result["ema"] is not None:
        averaged = result["ema_accuracy_matrix"]
        consistent = consistent and _is_triangle(averaged) and len(averaged) == len(matrix)
        consistent = consistent and _agrees(result["ema"], averaged)
    if not consistent:
        raise UserError(f"{path}: damaged: its accuracies and its accuracy matrix do not belong together")
    classes = result["class_accuracy"]
    last = classes[-1] if len(classes) == len(matrix) else None
    whole = {str(c) for c in range(DATASETS[result["dataset"]].classes)}
    if not isinstance(last, dict) or set(last) != whole or not all(map(metrics.is_share, last.values())):
        raise UserError(f"{path}: damaged: it lacks the accuracy of some class")


def _is_triangle(matrix: list[Any]) -> bool:
    return len(matrix) > 0 and all(
        isinstance(row, list) and len(row) == i and all(map(metrics.is_share, row))
        for i, row in enumerate(matrix, 1)
    )


def _agrees(measures: dict[str, Any], matrix: list[list[float]]) -> bool:
    expected = metrics.summary(matrix)
    return all(
        isinstance(measures.get(metric), _NUMBER) and abs(measures[metric] - value) < 1e-6
        for metric, value in expected.items()
    )
