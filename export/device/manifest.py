"""What a published version says of itself in its manifest, checked before it is used.

exports/latest.json               the current version: replaced atomically
exports/v000017/manifest.json     what the version is, with size and SHA-256 of its files
exports/v000017/model.onnx        and its variants; beside it labels, a model card and a golden sample
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from edge_hpcr.common.errors import UserError, first_of
from edge_hpcr.common.files import read_regular, sha256
from edge_hpcr.common.formats import LATEST as LATEST_FORMAT
from edge_hpcr.common.formats import MANIFEST as MANIFEST_FORMAT
from edge_hpcr.common.formats import Format
from edge_hpcr.common.text import LONGEST_NAME, is_class_name
from edge_hpcr.stream.region import Region
from edge_hpcr.stream.resize import RESIZE_RULE
from export.device import BadModel, Unavailable

FORMAT = MANIFEST_FORMAT.current
LATEST, MANIFEST = "latest.json", "manifest.json"
VARIANTS = ("fp32", "int8")
LARGEST_MODEL = 500_000_000  # bytes
LARGEST_MANIFEST = 32_000_000
LARGEST_LATEST = 65_536
MOST_CLASSES = 65_535


# Checking JSON --------------------------------------------------------------------------------------------------------

Kind = TypeVar("Kind")


def read(kind: type[Kind], values: Any, where: str) -> Kind:
    """The dataclass that a JSON object describes; `BadModel` names what is wrong."""
    try:
        found: Kind = _adapter(kind).validate_python(values)  # type: ignore[arg-type]
    except ValidationError as error:
        raise BadModel(f"{where}: {first_of(error)}") from None
    return found


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse_json(data: bytes | str, where: str) -> Any:
    """The JSON value, or a `BadModel` that says what came instead."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{where}: not valid JSON ({str(error)[:80]})") from None


def _upgraded(data: bytes, form: Format[dict[str, Any]], where: str) -> dict[str, Any]:
    """A JSON object in the current format; a newer one is refused."""
    values = parse_json(data, where)
    if not isinstance(values, dict):
        raise BadModel(f"{where}: its content is not a JSON object")
    try:
        if form.is_old(values.get("format"), where):
            form.upgrade(values, values["format"])
    except UserError as error:
        raise BadModel(str(error)) from None
    return values


def _class_name(name: str) -> str:
    if not is_class_name(name):
        raise ValueError(f"it must be text of 1 to {LONGEST_NAME} characters without control characters")
    return name


def _region(values: Any) -> Region:
    try:
        return Region.of(values)
    except UserError as error:
        raise ValueError(str(error)) from None


Whole = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Line = Annotated[str, Field(pattern=rf"^[^\x00-\x1f\x7f-\x9f]{{0,{LONGEST_NAME}}}$")]
PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$")]  # of nothing elsewhere
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=]{1,200}$")]


# What a model is ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassLabel:
    """A class as the learner knows it: the id stays, the name may change."""

    id: Whole
    name: Annotated[str, AfterValidator(_class_name)]
    colour: Annotated[str | None, Field(pattern="^#[0-9A-Fa-f]{6}$")] = None


def _different(classes: tuple[ClassLabel, ...]) -> tuple[ClassLabel, ...]:
    if len({each.id for each in classes}) != len(classes):
        raise ValueError("two classes have the same id")
    return classes


@dataclass(frozen=True)
class InputImage:
    """What a model takes."""

    height: Annotated[Whole, Field(ge=1, le=1024)]
    width: Annotated[Whole, Field(ge=1, le=1024)]
    resize: Annotated[str, Field(pattern=f"^{RESIZE_RULE}$")]  # the only one so far


# The files of an exports folder ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelFile:
    """A file of a version, and how to know that it is the right one."""

    file: PlainName
    bytes: Annotated[Whole, Field(ge=1, le=LARGEST_MODEL)]
    sha256: Sha256


@dataclass(frozen=True)
class Signature:
    """What the owner of a private key says of a latest.json, see signing.py; both are base64."""

    serial: Whole  # grows with every latest.json
    allows_older: Annotated[bool, Field(strict=True)]  # than what a device has run: after a rollback
    manifest: Base64
    latest: Base64


@dataclass(frozen=True)
class Latest:
    """The contents of latest.json."""

    version: Whole
    folder: PlainName
    manifest_sha256: Sha256
    signature: Signature | None = None

    @classmethod
    def parse(cls, data: bytes, where: str) -> "Latest":
        return read(cls, _upgraded(data, LATEST_FORMAT, where), where)

    def to_bytes(self) -> bytes:
        # Without a signature it is what every version wrote; older devices do not look at one.
        facts = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({"format": LATEST_FORMAT.current, **facts}).encode()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of a manifest.json. The model's metadata say the same; the SHA-256 here is that of both."""

    version: Whole
    step: Whole
    created: Line
    image: InputImage
    # In the order of the scores.
    classes: Annotated[
        tuple[ClassLabel, ...], Field(min_length=1, max_length=MOST_CLASSES), AfterValidator(_different)
    ]
    unknown_below: Annotated[float | None, Field(strict=True, ge=-1, le=1, allow_inf_nan=False)] = None
    feature_size: Annotated[Whole, Field(ge=1, le=2**20)]
    # Of the camera's picture; None: all of it.
    region: Annotated[Region, BeforeValidator(_region)] | None = None
    model: ModelFile
    variants: dict[str, ModelFile]
    missing_variants: dict[str, str]  # the reason why there is none
    beside: dict[str, ModelFile] = field(default_factory=dict)  # for people and other programs; none in 0.1
    facts: dict[str, Any] = field(repr=False, compare=False)  # all of it, for what only people read

    @classmethod
    def parse(cls, data: bytes, where: str, latest: Latest | None = None) -> "Manifest":
        """The manifest in `data`: the one that latest.json promises, where it is given."""
        if latest is not None and sha256(data) != latest.manifest_sha256:
            raise BadModel(f"{where}: its SHA-256 is not the one in {LATEST}")
        facts = _upgraded(data, MANIFEST_FORMAT, where)

        made = facts.get("variants")
        entries = made if isinstance(made, dict) else {}
        missing = {
            name: str(each.get("reason", "no reason given"))[:200]
            for name, each in entries.items()
            if isinstance(each, dict) and each.get("kept") is False
        }
        # One of a newer version is left alone, as one that was not kept.
        variants = {
            name: each for name, each in entries.items() if name in VARIANTS[1:] and name not in missing
        }
        more = {"model": facts, "variants": variants, "missing_variants": missing, "facts": facts}
        manifest = read(cls, {**facts, **more}, where)
        if latest is not None and manifest.version != latest.version:
            raise BadModel(f"{where}: version {manifest.version}, where {LATEST} says {latest.version}")
        return manifest

    @property
    def files(self) -> list[ModelFile]:
        return [self.model, *self.variants.values(), *self.beside.values()]

    def file_of(self, variant: str) -> ModelFile:
        """The file of a variant; the plain model's if this version does not have it."""
        return self.variants.get(variant, self.model)


def read_plain_file(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes, and not of what a link points to."""
    return read_regular(path, limit, lambda reason: BadModel(f"{path}: cannot be read: {reason}"), False)


def read_latest(exports: Path) -> Latest:
    path = exports / LATEST
    return Latest.parse(read_plain_file(path, LARGEST_LATEST), str(path))


def current_folder(path: Path) -> tuple[Path, Latest | None]:
    """The current version's folder in an exports folder, and what names it; a version's folder is its own."""
    if (path / MANIFEST).exists():
        return path.resolve(), None
    if not (path / LATEST).exists():
        raise Unavailable(f"{path} holds no published model yet (no {LATEST})")
    latest = read_latest(path)
    return path.resolve() / latest.folder, latest


def read_manifest(folder: Path, latest: Latest | None = None) -> Manifest:
    """The manifest of a version folder: the one that latest.json promises, where it does."""
    path = folder / MANIFEST
    return Manifest.parse(_read_version_file(path, LARGEST_MANIFEST), str(path), latest)


def read_model_file(folder: Path, file: ModelFile) -> bytes:
    """The bytes of a model, exactly those that its manifest describes."""
    path = folder / file.file
    data = _read_version_file(path, LARGEST_MODEL)
    if len(data) != file.bytes:
        raise BadModel(f"{path}: {len(data)} bytes instead of {file.bytes}: cut short or changed")
    if sha256(data) != file.sha256:
        raise BadModel(f"{path}: its SHA-256 is not the one in {MANIFEST}: damaged or changed")
    return data


def _read_version_file(path: Path, limit: int) -> bytes:
    data = read_plain_file(path, limit)
    if path.parent.is_symlink():
        raise BadModel(f"{path.parent}: a link, and not a folder")
    return data
