"""What an exports folder says of its models, checked before it is used. No third-party library.

exports/latest.json               the current version: replaced atomically
exports/v000017/manifest.json     what the version is, with size and SHA-256 of its files
exports/v000017/model.onnx        and its variants; beside it labels, a model card and a golden sample
"""

import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from edge_hpcr.common.errors import UserError
from edge_hpcr.common.files import open_regular, read_regular, reason_of, sha256
from edge_hpcr.common.formats import LATEST as LATEST_FORMAT
from edge_hpcr.common.formats import MANIFEST as MANIFEST_FORMAT
from edge_hpcr.common.formats import Format
from edge_hpcr.common.text import LONGEST_NAME, is_class_name
from edge_hpcr.stream.region import Region
from export.device.errors import BadModel

FORMAT = MANIFEST_FORMAT.current
LATEST, MANIFEST = "latest.json", "manifest.json"
VARIANTS = ("fp32", "int8", "fp16")
LARGEST_MODEL = 500_000_000
LARGEST_MANIFEST = 32_000_000
LARGEST_LATEST = 65_536
MOST_BESIDE = 20
LARGEST_SIDE = 1024
LARGEST_FEATURE = 2**20
MOST_CLASSES = 65_535
# The trainer asks for 1e-4. A device allows more, because it only guards against a file that should never have left.
MOST_SCORE_DIFFERENCE = 0.01

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{1,200}")
_COLOUR = re.compile(r"#[0-9A-Fa-f]{6}")


@dataclass(frozen=True)
class ClassLabel:
    """A class as the learner knows it: the id stays, the name may change."""

    id: int
    name: str
    colour: str | None = None


@dataclass(frozen=True)
class ModelFile:
    """A file of a version, and how to know that it is the right one."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Signature:
    """What the owner of a private key says of a latest.json, see signing.py; both are base64."""

    serial: int  # grows with every latest.json
    allows_older: bool  # than what a device has run: after a rollback
    manifest: str
    latest: str


@dataclass(frozen=True)
class Latest:
    """The contents of latest.json."""

    version: int
    folder: str
    manifest_sha256: str
    signature: Signature | None = None

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Latest":
        facts = Facts(parse_json(data, where), where)
        facts.upgrade(LATEST_FORMAT)
        return cls(
            facts.whole("version", 0),
            facts.matching("folder", _PLAIN_NAME, "the plain name of a folder"),
            facts.matching("manifest_sha256", _SHA256, "a SHA-256 in hexadecimal"),
            None if facts.values.get("signature") is None else _parse_signature(facts.inner("signature")),
        )

    def to_bytes(self) -> bytes:
        # Without a signature it is what every version wrote; older devices do not look at one.
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({"format": LATEST_FORMAT.current, **facts}).encode()


def _parse_signature(facts: "Facts") -> Signature:
    return Signature(
        facts.whole("serial", 0),
        bool(facts.get("allows_older", lambda value: isinstance(value, bool), "true or false")),
        *(facts.matching(name, _BASE64, "a signature in base64") for name in ("manifest", "latest")),
    )


class Facts:
    """A JSON object whose values are asked for with their type; the error names the file and the key."""

    def __init__(self, values: Any, where: str, prefix: str = "") -> None:
        if not isinstance(values, dict):
            raise BadModel(f"{where}: {prefix.rstrip('.') or 'its content'} is not a JSON object")
        self.values: dict[str, Any] = values
        self.where = where
        self._prefix = prefix

    def get(self, key: str, is_good: Callable[[Any], object], wanted: str) -> Any:
        value = self.values.get(key)
        if not is_good(value):
            shown = repr(value)[:60] if key in self.values else "missing"
            raise BadModel(f"{self.where}: {self._prefix}{key} must be {wanted}, and is {shown}")
        return value

    def upgrade(self, form: Format[dict[str, Any]]) -> None:
        """Bring the facts to the current format; a newer one is refused."""
        newest = form.current
        wanted = f"{newest} (a newer format needs a newer runtime)"
        form.upgrade(self.values, self.get("format", lambda value: is_whole(value, 1, newest), wanted))

    def whole(self, key: str, least: int, most: int = 2**53) -> int:
        wanted = f"a whole number from {least} to {most}"
        return int(self.get(key, lambda value: is_whole(value, least, most), wanted))

    def number(self, key: str, is_good: Callable[[float], bool], wanted: str) -> float:
        return float(self.get(key, lambda value: is_number(value) and is_good(value), wanted))

    def text(self, key: str) -> str:
        def is_good(value: Any) -> bool:
            return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()

        return str(self.get(key, is_good, f"text of at most {LONGEST_NAME} characters"))

    def matching(self, key: str, pattern: re.Pattern[str], wanted: str) -> str:
        return str(self.get(key, lambda value: isinstance(value, str) and pattern.fullmatch(value), wanted))

    def inner(self, key: str) -> "Facts":
        return Facts(self.values.get(key), self.where, f"{self._prefix}{key}.")


@dataclass(frozen=True)
class Described:
    """What a manifest and a model's metadata both say of a model."""

    version: int
    step: int
    created: str
    height: int
    width: int
    resize: str
    classes: tuple[ClassLabel, ...]  # in the order of the scores
    unknown_below: float | None
    feature_size: int
    region: Region | None = field(default=None, kw_only=True)  # of the camera's picture; None: all of it

    @staticmethod
    def read(facts: Facts) -> dict[str, Any]:
        image, threshold = facts.inner("image"), None
        if facts.values.get("unknown_below") is not None:
            threshold = facts.number(
                "unknown_below", lambda value: -1 <= value <= 1, "a cosine from -1 to 1 or null"
            )
        return {
            "version": facts.whole("version", 0),
            "step": facts.whole("step", 0),
            "created": facts.text("created"),
            "height": image.whole("height", 1, LARGEST_SIDE),
            "width": image.whole("width", 1, LARGEST_SIDE),
            "resize": image.text("resize"),
            "classes": parse_classes(facts.values.get("classes"), facts.where),
            "unknown_below": threshold,
            "feature_size": facts.whole("feature_size", 1, LARGEST_FEATURE),
            "region": _parse_region(facts),
        }


@dataclass(frozen=True)
class Manifest(Described):
    """The contents of a manifest.json; `facts` is all of it, for what only people read."""

    model: ModelFile
    variants: dict[str, ModelFile]
    missing_variants: dict[str, str]  # the reason why there is none
    beside: dict[str, ModelFile]  # for people and other programs; none in versions of 0.1
    facts: dict[str, Any] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Manifest":
        facts = Facts(parse_json(data, where), where)
        facts.upgrade(MANIFEST_FORMAT)
        # Refuse a model that its own manifest says differs from the network that it was made of.
        facts.inner("parity").number(
            "max_score_difference",
            lambda value: 0 <= value <= MOST_SCORE_DIFFERENCE,
            f"a number from 0 to {MOST_SCORE_DIFFERENCE}",
        )
        variants, missing = _parse_variants(facts)
        return cls(
            **cls.read(facts),
            model=_parse_file(facts),
            variants=variants,
            missing_variants=missing,
            beside=_parse_beside(facts),
            facts=facts.values,
        )

    @property
    def files(self) -> list[ModelFile]:
        return [self.model, *self.variants.values(), *self.beside.values()]

    def file_of(self, variant: str) -> ModelFile:
        """The file of a variant; the plain model's if this version does not have it."""
        return self.variants.get(variant, self.model)


def _parse_region(facts: Facts) -> Region | None:
    if facts.values.get("region") is None:
        return None
    try:
        return Region.of(facts.values["region"])
    except UserError as error:
        raise BadModel(f"{facts.where}: {error}") from None


def _parse_file(facts: Facts) -> ModelFile:
    return ModelFile(
        facts.matching("file", _PLAIN_NAME, "the plain name of a file in the same folder"),
        facts.whole("bytes", 1, LARGEST_MODEL),
        facts.matching("sha256", _SHA256, "a SHA-256 in hexadecimal"),
    )


def _parse_variants(facts: Facts) -> tuple[dict[str, ModelFile], dict[str, str]]:
    """The variants that were kept, and why the others were not."""
    kept: dict[str, ModelFile] = {}
    missing: dict[str, str] = {}
    if facts.values.get("variants") is None:
        return kept, missing
    listed = facts.inner("variants")
    for name in VARIANTS[1:]:
        if listed.values.get(name) is None:
            continue
        variant = listed.inner(name)
        if variant.values.get("kept") is False:
            missing[name] = str(variant.values.get("reason", "no reason given"))[:200]
        else:
            kept[name] = _parse_file(variant)
    return kept, missing


def _parse_beside(facts: Facts) -> dict[str, ModelFile]:
    if facts.values.get("beside") is None:
        return {}
    listed = facts.inner("beside")
    if len(listed.values) > MOST_BESIDE:
        raise BadModel(f"{facts.where}: beside names {len(listed.values)} files, more than {MOST_BESIDE}")
    return {name: _parse_file(listed.inner(name)) for name in listed.values}


def parse_json(data: bytes | str, where: str) -> Any:
    """The JSON value, or a `BadModel` that says what came instead."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        start = (data if isinstance(data, bytes) else data.encode(errors="replace"))[:200].lstrip().lower()
        if start.startswith((b"<!doctype", b"<html")):
            raise BadModel(f"{where}: an HTML page instead of JSON") from None
        raise BadModel(f"{where}: not valid JSON ({str(error)[:80]})") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def is_whole(value: Any, least: int, most: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any) -> TypeGuard[float]:
    """A finite number; an integer too long for a float counts as none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def parse_classes(value: Any, where: str) -> tuple[ClassLabel, ...]:
    """The classes in the order of the scores; a manifest and a model's metadata hold the same list."""
    if not isinstance(value, list):
        raise BadModel(f"{where}: classes is not a list")
    if not 1 <= len(value) <= MOST_CLASSES:
        count = len(value) or "no"
        raise BadModel(f"{where}: it knows {count} classes; 1 to {MOST_CLASSES} are possible")
    classes = tuple(_parse_class(entry, f"classes[{index}].", where) for index, entry in enumerate(value))
    if len({each.id for each in classes}) != len(classes):
        raise BadModel(f"{where}: two classes have the same id")
    return classes


def _parse_class(entry: Any, prefix: str, where: str) -> ClassLabel:
    facts = Facts(entry, where, prefix)
    wanted = f"text of 1 to {LONGEST_NAME} characters without line breaks and control characters"
    name = facts.get("name", lambda value: isinstance(value, str) and is_class_name(value), wanted)
    colour = None
    if facts.values.get("colour") is not None:
        colour = facts.matching("colour", _COLOUR, "a colour like #1f77b4 or null")
    return ClassLabel(facts.whole("id", 0), name, colour)


def read_plain_file(path: Path, limit: int, follow: bool = False) -> bytes:
    """The bytes of a regular file of at most `limit` bytes, and not of what a link points to, unless `follow`."""
    return read_regular(path, limit, partial(_unreadable, path), follow)


def open_plain_file(path: Path, limit: int) -> io.BufferedReader:
    """As `read_plain_file`, opened."""
    return open_regular(path, limit, partial(_unreadable, path), follow=False)


def _unreadable(path: Path, reason: str) -> BadModel:
    return BadModel(f"{path}: cannot be read: {reason}")


def read_latest(exports: Path) -> Latest:
    path = exports / LATEST
    return Latest.parse(read_plain_file(path, LARGEST_LATEST), str(path))


def read_manifest(folder: Path, latest: Latest | None = None) -> Manifest:
    """The manifest of a version folder: the one that latest.json promises, where it does."""
    _refuse_linked_folder(folder)
    path = folder / MANIFEST
    return parse_manifest(read_plain_file(path, LARGEST_MANIFEST), str(path), latest)


def parse_manifest(data: bytes, where: str, latest: Latest | None = None) -> Manifest:
    if latest is not None and sha256(data) != latest.manifest_sha256:
        raise BadModel(f"{where}: its SHA-256 is not the one in {LATEST}")
    manifest = Manifest.parse(data, where)
    if latest is not None and manifest.version != latest.version:
        raise BadModel(f"{where}: version {manifest.version}, where {LATEST} says {latest.version}")
    return manifest


def read_model_file(folder: Path, file: ModelFile) -> bytes:
    """The bytes of a model, exactly those that its manifest describes."""
    _refuse_linked_folder(folder)
    path = folder / file.file
    data = read_plain_file(path, LARGEST_MODEL)
    if len(data) != file.bytes:
        raise BadModel(f"{path}: {len(data)} bytes instead of {file.bytes}: cut short or changed")
    if sha256(data) != file.sha256:
        raise BadModel(f"{path}: its SHA-256 is not the one in {MANIFEST}: damaged or changed")
    return data


def _refuse_linked_folder(folder: Path) -> None:
    try:
        if folder.is_symlink():
            raise BadModel(f"{folder}: a link, and not a folder")
    except OSError as error:
        raise _unreadable(folder, reason_of(error)) from None
