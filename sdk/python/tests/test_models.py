"""Every model has the fields of its schema in ``openapi/``.

None is missing, none is unknown, and none is promised that the server may leave out.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any, Dict, List, Literal, Set, Tuple, Union, get_args, get_origin, get_type_hints

import pytest

from pandastack import (
    Sandbox,
    account_models,
    app_models,
    context_models,
    database_models,
    file_models,
    function_models,
    models,
    schedule_models,
    template_models,
    volume_models,
    webhook_models,
)

OPENAPI = Path(__file__).resolve().parents[3] / "openapi" / "pandastack-v1.json"
MODULES = (
    models,
    account_models,
    app_models,
    context_models,
    database_models,
    file_models,
    function_models,
    schedule_models,
    template_models,
    volume_models,
    webhook_models,
)

#: Models whose schema has another name.
RENAMED: Dict[str, str] = {
    "FileInfo": "FileEntry",
    "FunctionInfo": "Function",
    "FunctionRun": "Run",
    "ProcessInfo": "Process",
    "PromoteResult": "Promoted",
    "SandboxEvent": "Event",
    "SnapshotInfo": "Snapshot",
    "TemplateBuild": "Build",
    "Token": "TokenCreated",
    "Usage": "UsageReport",
    "VolumeInfo": "Volume",
    "WriteResult": "FileWritten",
}
#: Models that are no answer of the server.
OWN: Dict[str, str] = {
    "ExecChunk": "made of a stream's events",
    "OutputGap": "made of a stream's events",
    "Result": "a map of media types, which has no fixed fields",
}
#: Fields of schemas that a model has under another name.
FIELD_RENAMED: Dict[str, str] = {
    "Execution.exit": "exit_code",
    "ProcessInfo.pty": "is_terminal",
    "Token.label": "name",
}
#: Fields of schemas that a call answers instead.
FIELD_CALLED: Dict[str, str] = {"Sandbox.network": "network"}
#: Fields that no answer has.
FIELD_OWN: Dict[str, str] = {
    "FileChange.id": "the id of its event in the stream",
    "Port.label": "of the published client",
    "Port.source": "of the published client",
    "Sandbox._client": "where its calls go",
    "Sandbox.raw": "the answer itself",
    "Template.meta": "of the published client",
    "Template.rootfs_path": "of the published client",
    "Template.workspace": "of the published client",
    "TemplateBuild.bytes": "of the published client",
    "TemplateBuild.image_ref": "of the published client",
    "TemplateBuild.size_mb": "of the published client",
}


def all_models() -> List[type]:
    """Every record in the modules of models, and the sandbox."""
    found = [
        value
        for module in MODULES
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        if is_dict(value) or dataclasses.is_dataclass(value)
    ]
    return [*found, Sandbox]


def is_dict(model: type) -> bool:
    return hasattr(model, "__total__")


def fields(model: Any) -> Tuple[Set[str], Set[str]]:
    """Names of a model's fields, and those it promises."""
    if is_dict(model):
        return set(model.__required_keys__ | model.__optional_keys__), set(model.__required_keys__)
    missing = dataclasses.MISSING
    own = dataclasses.fields(model)
    return {each.name for each in own}, {
        each.name for each in own if each.default is missing and each.default_factory is missing
    }


class Schemas:
    """The schemas of the API's description."""

    def __init__(self, text: str) -> None:
        self.by_name: Dict[str, Any] = json.loads(text)["components"]["schemas"]

    def properties(self, schema: Dict[str, Any]) -> Dict[str, Any]:
        """Schemas of a schema's fields by name."""
        if "$ref" in schema:
            return self.properties(self.by_name[schema["$ref"].rpartition("/")[2]])
        parts = [*schema.get("allOf", []), *schema.get("oneOf", [])]
        found = {name: field for part in parts for name, field in self.properties(part).items()}
        return {**found, **schema.get("properties", {})}

    def fields(self, schema: Dict[str, Any]) -> Tuple[Set[str], Set[str]]:
        """Names of a schema's fields, and those that are always there."""
        if "$ref" in schema:
            return self.fields(self.by_name[schema["$ref"].rpartition("/")[2]])
        names, required = set(schema.get("properties", {})), set(schema.get("required", []))
        for part in schema.get("allOf", []):
            more, always = self.fields(part)
            names, required = names | more, required | always
        for part in schema.get("oneOf", []):
            # One of several: none of their fields is always there.
            names |= self.fields(part)[0]
        return names, required


@pytest.fixture(scope="module")
def schemas() -> Schemas:
    if not OPENAPI.exists():
        pytest.skip("skipped: the package is tested outside of its repository")
    return Schemas(OPENAPI.read_text(encoding="utf-8"))


ANSWERS = [model for model in all_models() if model.__name__ not in OWN]


@pytest.mark.parametrize("model", ANSWERS, ids=lambda model: model.__name__)
def test_a_model_has_the_fields_of_its_schema(model: type, schemas: Schemas):
    name = model.__name__
    wire, always = schemas.fields({"$ref": f"/{RENAMED.get(name, name)}"})
    ours, promised = fields(model)

    def local(names: Set[str]) -> Set[str]:
        return {FIELD_RENAMED.get(f"{name}.{each}", each) for each in names}

    own = {each for each in ours if f"{name}.{each}" in FIELD_OWN}
    wire = {each for each in wire if f"{name}.{each}" not in FIELD_CALLED}
    assert {"missing": local(wire) - ours, "unknown": ours - local(wire) - own} == {"missing": set(), "unknown": set()}
    assert promised - own - local(always) == set(), "promised, but the server may leave it out"


def json_types(schema: Dict[str, Any], schemas: Schemas) -> Set[str]:
    """Types that a schema allows, without null."""
    if "$ref" in schema:
        return json_types(schemas.by_name[schema["$ref"].rpartition("/")[2]], schemas)
    parts = [*schema.get("oneOf", []), *schema.get("anyOf", []), *schema.get("allOf", [])]
    found = {each for part in parts for each in json_types(part, schemas)}
    own = schema.get("type", [])
    return (found | {own} if isinstance(own, str) else found | set(own)) - {"null"}


def local_types(annotation: Any) -> Set[str]:
    """Types of JSON that an annotation allows; none for any."""
    origin = get_origin(annotation)
    if origin is Union:
        return {each for arg in get_args(annotation) for each in local_types(arg)}
    if origin is Literal:
        return {"string"}
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
    name = plain.get(origin or annotation)
    is_record = is_dict(annotation) or dataclasses.is_dataclass(annotation)
    return {name} if name else {"object"} if is_record else set()


@pytest.mark.parametrize("model", ANSWERS, ids=lambda model: model.__name__)
def test_a_field_has_the_type_of_its_schema(model: type, schemas: Schemas):
    name, wrong = model.__name__, {}
    wire = schemas.properties({"$ref": f"/{RENAMED.get(name, name)}"})
    for field, annotation in get_type_hints(model, localns={"PandaStack": object}).items():
        theirs = json_types(wire[field], schemas) if field in wire else set()
        ours = local_types(annotation)
        fits = not ours or not theirs or theirs <= ours or (theirs == {"integer"} and "number" in ours)
        if not fits:
            wrong[field] = (ours, theirs)
    assert wrong == {}


def test_no_schema_exception_is_stale(schemas: Schemas):
    known = {model.__name__: model for model in all_models()}
    assert {"Sandbox", "App", "Database"} <= set(known)
    assert set(RENAMED) | set(OWN) <= set(known)
    for path in FIELD_OWN:
        model, _, name = path.partition(".")
        wire, _ = schemas.fields({"$ref": f"/{RENAMED.get(model, model)}"})
        assert name in fields(known[model])[0] and name not in wire, path
    for path, call in FIELD_CALLED.items():
        model, _, name = path.partition(".")
        assert name not in fields(known[model])[0] and callable(getattr(known[model], call)), path
    for path, local in FIELD_RENAMED.items():
        model, _, name = path.partition(".")
        wire, _ = schemas.fields({"$ref": f"/{RENAMED.get(model, model)}"})
        assert name in wire and name not in fields(known[model])[0] and local in fields(known[model])[0], path
