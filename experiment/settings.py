"""Which settings there are: names, defaults, bounds, meaning; `load_settings` puts them together.

Defaults < ``experiment.toml`` in the checkout < environment (``EXPERIMENT_BUILD__JOBS``) < task
flags.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from experiment import settings_sources as sources
from experiment.paths import ROOT

CONFIG = ROOT / "experiment.toml"
"""The settings file that is read where it exists."""

ENV_PREFIX = "EXPERIMENT_"
"""A variable of the environment that begins so is a setting; all others are left alone."""


def _not_a_boolean(value: object) -> object:
    # pydantic takes TOML's `rounds = true` for 1, which nobody means.
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    return value


def _not_blank(value: object) -> object:
    # Path("") is the current directory: an empty value would silently scatter files there.
    if isinstance(value, str) and not value.strip():
        raise ValueError("an empty text is not a path")
    return value


def _absolute(path: Path) -> Path:
    # os.path leaves "~nobody" alone where pathlib raises a RuntimeError.
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111


def _is_file(model_name: str) -> bool:
    return model_name.endswith(".gguf") or "/" in model_name


def _absolute_if_file(model_name: str) -> str:
    return str(_absolute(Path(model_name))) if _is_file(model_name) else model_name


_Int = Annotated[int, BeforeValidator(_not_a_boolean)]
_Seconds = Annotated[
    float, BeforeValidator(_not_a_boolean), Field(gt=0, le=86_400, allow_inf_nan=False)
]
_Percent = Annotated[
    float, BeforeValidator(_not_a_boolean), Field(gt=0, le=100, allow_inf_nan=False)
]
_Cores = Annotated[
    float, BeforeValidator(_not_a_boolean), Field(ge=0, le=4096, allow_inf_nan=False)
]
_Path = Annotated[Path, BeforeValidator(_not_blank), AfterValidator(_absolute)]


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BuildSettings(_Group):
    """Which llama.cpp source is built, and how."""

    pin: str = Field(
        default="sdist", min_length=1, description="source to build: a name in pins.toml"
    )
    source: _Path | None = Field(default=None, description='llama.cpp checkout for the pin "local"')
    jobs: _Int = Field(
        default=0, ge=0, le=4096, description="compiler jobs at once; 0 = usable cores"
    )
    prebuilt: _Path | None = Field(
        default=None, description="folder of a finished build; nothing is compiled then"
    )

    @model_validator(mode="after")
    def _local_needs_a_checkout(self) -> Self:
        if self.pin == "local" and self.source is None:
            raise ValueError('build.pin is "local", but build.source names no checkout')
        return self


class ModelSettings(_Group):
    """Which model is measured."""

    name: Annotated[str, AfterValidator(_absolute_if_file)] = Field(
        default="nano", min_length=1, description="stand-in shape, or path of a GGUF file"
    )
    mmproj: _Path | None = Field(default=None, description="vision tower (GGUF) of one's own model")


class ServerSettings(_Group):
    """How llama-server is started and waited for."""

    threads: _Int = Field(default=0, ge=0, le=4096, description="compute threads; 0 = usable cores")
    batch: _Int = Field(default=2048, ge=1, le=1 << 20, description="logical batch, tokens (-b)")
    ubatch: _Int = Field(default=512, ge=1, le=1 << 20, description="physical batch, tokens (-ub)")
    start_timeout_s: _Seconds = Field(
        default=600.0, description="longest wait for the model to load"
    )
    request_timeout_s: _Seconds = Field(default=1800.0, description="longest wait for one answer")
    state_cache_mib: _Int = Field(
        default=4096,
        ge=1,
        le=1 << 24,
        description="memory for saved prefix states; oldest out first",
    )
    context: _Int = Field(
        default=0, ge=0, le=1 << 24, description="KV cells of the context; 0 = sized to the trace"
    )
    fake_fill: Literal["zero", "tile"] = Field(
        default="tile",
        description="data of a fabricated prefix: zeros, or a short real segment repeated",
    )
    fake_tile: _Int = Field(
        default=256, ge=1, le=1 << 16, description="tokens of that segment, decoded once a server"
    )

    @model_validator(mode="after")
    def _ubatch_fits_batch(self) -> Self:
        # llama.cpp would lower it without a word, and the record would be wrong.
        if self.ubatch > self.batch:
            raise ValueError(
                f"server.ubatch ({self.ubatch}) must not exceed server.batch ({self.batch})"
            )
        return self


class ScheduleSettings(_Group):
    """How often each variant is measured."""

    rounds: _Int = Field(
        default=3, ge=1, le=1000, description="rounds of fake, control and restored at least"
    )
    max_rounds: _Int = Field(default=100, ge=1, le=10_000, description="rounds at most")
    half_width_pct: _Percent = Field(
        default=0.5,
        description="rounds are added until the interval of fake/restored is this narrow, "
        "half-width in %",
    )
    precision: Literal["run", "step"] = Field(
        default="run", description="whose interval: that of the whole run, or of every step"
    )
    time_limit_s: _Seconds = Field(
        default=60.0, description="no round is added after this many seconds of added rounds"
    )
    full_rounds: _Int = Field(
        default=1, ge=0, le=1000, description="rounds of full, the whole prompt"
    )
    restored_max_depth: _Int = Field(
        default=1 << 24,
        ge=0,
        le=1 << 24,
        description="deepest L at which a real prefix is decoded, for restored and by llama-bench",
    )
    full_max_depth: _Int = Field(
        default=1 << 24, ge=0, le=1 << 24, description="deepest L at which full is measured"
    )
    structure_steps: _Int = Field(
        default=6,
        ge=0,
        le=100_000,
        description="steps whose experts are counted, untimed, spread over depth",
    )
    warmup_rounds: _Int = Field(default=1, ge=0, le=1000, description="rounds before, not counted")


class CalibrationSettings(_Group):
    """How llama-bench is run for the arithmetic estimate."""

    chunk: _Int = Field(default=512, ge=1, le=1 << 20, description="new tokens of one sample")
    repetitions: _Int = Field(default=3, ge=1, le=1000, description="samples at each depth")
    points: _Int = Field(
        default=6, ge=2, le=1000, description="depths, from 0 to the trace's deepest"
    )
    at: Literal["points", "steps"] = Field(
        default="points",
        description="where: evenly spaced depths with the chunk, or every step's own L and new",
    )


class ContainerSettings(_Group):
    """How the image is built and a container of it is run."""

    image: str = Field(default="prefix-replay", min_length=1, description="name of the image")
    base_image: str | None = Field(
        default=None, description="base image in place of the one in pins.toml"
    )
    ca_bundle: _Path | None = Field(
        default=None,
        description="certificates for the build behind a proxy; default: what PIP_CERT, "
        "SSL_CERT_FILE or REQUESTS_CA_BUNDLE names",
    )
    apt_snapshot: bool = Field(
        default=True, description="take Debian packages from the snapshot the base image names"
    )
    memory_mib: _Int = Field(
        default=0, ge=0, le=1 << 24, description="memory limit of a run; 0 = none"
    )
    cpus: _Cores = Field(default=0.0, description="CPU limit of a run; 0 = none")


class Settings(BaseSettings):
    """All settings of a run, frozen. ``Settings()`` holds the defaults and reads nothing."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    engine: Literal["auto", "docker", "native"] = Field(
        default="auto", description="where it happens; auto: docker where an engine answers"
    )
    cache_dir: _Path = Field(
        default=ROOT / ".cache", description="sources, builds and stand-in models"
    )
    results_dir: _Path = Field(default=ROOT / "results", description="one folder a run")
    seed: _Int = Field(
        default=20260605, ge=0, le=2**32 - 1, description="placeholder words and stand-in weights"
    )
    build: BuildSettings = BuildSettings()
    model: ModelSettings = ModelSettings()
    server: ServerSettings = ServerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    calibration: CalibrationSettings = CalibrationSettings()
    container: ContainerSettings = ContainerSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keep only what `load_settings` hands over: it knows where each value came from."""
        return (init_settings,)


def load_settings(
    overrides: Mapping[str, object] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Put the layers together and check them.

    Args:
        overrides: task flags by dotted key, e.g. ``{"build.pin": "guide"}``; None = not given.
        config: the settings file; None reads `CONFIG` where it exists.
        environ: the environment; None takes the process's own.

    Raises:
        SettingsError: an unknown key (names the nearest right one), a value of the wrong type or
            out of bounds, or a file that is not TOML; each with the place it stands at.
    """
    known, groups = _known(), _groups()
    file = _file_layer(config, known, groups)
    env = sources.from_environment(os.environ if environ is None else environ, ENV_PREFIX)
    flags = sources.from_flags(overrides or {})
    sources.refuse(
        sources.unknown_keys(file, known, groups)
        + sources.unknown_keys(env, known, groups, lambda key: sources.variable(key, ENV_PREFIX))
        + sources.unknown_keys(flags, known, groups)
    )
    values = {**file, **env, **flags}
    try:
        return Settings(**sources.nest(values))  # type: ignore[arg-type]  # checked right here
    except ValidationError as error:
        problems = [_problem(detail, values, known) for detail in error.errors()]
        sources.refuse(problems)
        raise


def describe() -> list[tuple[str, str, str]]:
    """List (key, default, what it does and takes) of every setting, in the order of the model."""
    return [
        (key, _shown(field.default), f"{field.description} ({_expected(field)})")
        for key, field in _known().items()
    ]


def _file_layer(
    config: Path | None, known: Mapping[str, FieldInfo], groups: set[str]
) -> dict[str, sources.Value]:
    if config is None:
        if not CONFIG.exists():
            return {}
        config = CONFIG
    layer = sources.from_toml(config, groups)
    folder = config.absolute().parent
    return {key: _anchored(value, known.get(key), folder) for key, value in layer.items()}


def _anchored(value: sources.Value, field: FieldInfo | None, folder: Path) -> sources.Value:
    """Make a relative path of a settings file start at the file, wherever a task is called from."""
    raw = value.raw
    if field is None or not isinstance(raw, str) or not raw.strip() or raw.startswith("~"):
        return value
    is_path = Path in _types(field) or (_absolute_if_file in _validators(field) and _is_file(raw))
    return sources.Value(str(folder / raw), value.where) if is_path else value


def _validators(field: FieldInfo) -> list[object]:
    return [item.func for item in field.metadata if isinstance(item, AfterValidator)]


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key, field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _walk(field.annotation, f"{key}.")


def _groups() -> set[str]:
    return {key for key, field in _walk(Settings) if isinstance(field.default, BaseModel)}


def _known() -> dict[str, FieldInfo]:
    return {key: f for key, f in _walk(Settings) if not isinstance(f.default, BaseModel)}


def _types(field: FieldInfo) -> set[Any]:
    """Return the plain types of a field, through Optional and Annotated."""
    found, queue = set(), [field.annotation]
    while queue:
        current = queue.pop()
        if get_origin(current) is Literal or isinstance(current, type):
            found.add(current)
        else:
            arguments = get_args(current)
            queue += arguments[:1] if get_origin(current) is Annotated else arguments
    return found


def _expected(field: FieldInfo) -> str:
    """Say what a field takes, to go on from "must be"."""
    bounds = {type(item): item for item in field.metadata}
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(annotation))
    if annotation is int:
        return f"a whole number from {bounds[Ge].ge} to {bounds[Le].le}"
    if annotation is bool:
        return "true or false"
    if annotation is float and Ge in bounds:
        return f"a number from {bounds[Ge].ge} to {bounds[Le].le}"
    if annotation is float:
        return f"a number above {bounds[Gt].gt} and up to {bounds[Le].le}"
    if Path in _types(field):
        return "a path"
    return "a text that is not empty"


def _problem(
    detail: Any, values: Mapping[str, sources.Value], known: Mapping[str, FieldInfo]
) -> sources.Problem:
    """Turn one of pydantic's error records into a sentence."""
    # A union adds its branch to the place: ("model", "mmproj", "path").
    parts = [str(part) for part in detail["loc"]]
    key = next((k for n in (2, 1) if (k := ".".join(parts[:n])) in known), None)
    if key is not None:
        value = values[key]
        what = f"{key} must be {_expected(known[key])}, not {value.raw!r}"
        return sources.Problem(what, value.where)
    what = str(detail["ctx"]["error"]) if "ctx" in detail else str(detail["msg"])
    places = [value.where for name, value in values.items() if name in what]
    return sources.Problem(what, ", ".join(places) or None)


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, Path) and default.is_relative_to(ROOT):
        return default.relative_to(ROOT).as_posix()
    return str(default)
