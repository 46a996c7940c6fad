"""The JSON line of a frame; line.schema.json describes it."""

import json
from pathlib import Path
from typing import Any

from export.device.model import Label, Result

SCHEMA = Path(__file__).with_name("line.schema.json")


def result_line(
    number: int,
    at: float,
    origin: str,
    device: str,
    result: Result,
    answer: Label | None,
    version: int,
    milliseconds: float,
) -> dict[str, Any]:
    return {
        "frame": number,
        "at": round(at, 3),
        "origin": origin,
        "device": device,
        "top": [
            {"id": each.id, "name": each.name, "confidence": round(each.confidence, 6)} for each in result.top
        ],
        "unknown": result.unknown,
        "similarity": round(result.similarity, 6),
        "answer": None if answer is None else {"id": answer.id, "name": answer.name},
        "version": version,
        "latency_ms": round(milliseconds, 3),
    }


def as_text(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False)
