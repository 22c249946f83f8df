"""The schema of the report as a page for people: `docs/report-schema.md` is what `render_schema_page` returns.

`python -m scope.report.schema_page` prints it; a test compares the two.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from scope.report.document import SCHEMA_NAME, document_schema
from scope.report.findings import FINDING_KINDS
from scope.report.rows import ABSENT_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INTRODUCTION: Final = f"""# The report as JSON: `{SCHEMA_NAME}`

`scope analyze PATH... --json` prints one document. Its JSON schema is what
`scope.report.document.document_schema()` returns; this page is made from it.

- Keys bear their units: `_ns` integer nanoseconds, `_bytes` integer bytes, `_bytes_per_s` decimal and one way,
  `_flop_per_s` floating point operations a second, `_ratio` 0 to 1, `num_` counts.
- A figure that is not known is `null`, never 0, and `{ABSENT_KEY}` of the same record holds the reason under its key.
- Within one version keys are only added. A key that changes its meaning or goes away takes the next number.
- The commands for one analysis (`scope kernels --json` and the like) print a list of records; a key means there what it
  means here.
"""


def render_schema_page() -> str:
    """Return the page as Markdown."""
    sections = "\n".join(_sections("", document_schema()))
    kinds = "\n".join(f"| `{kind}` | {meaning} |" for kind, meaning in FINDING_KINDS.items())
    return f"{_INTRODUCTION}\n{sections}\n## Kinds of findings\n\n| kind | states |\n|---|---|\n{kinds}\n"


def _sections(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table for an object and then those of the objects inside it."""
    properties: dict[str, Any] = schema.get("properties", {})
    title = f"`{path}`" if path else "The document"
    yield f"## {title}\n"
    if "description" in schema:
        yield f"{schema['description']}\n"
    yield "| key | type | meaning |\n|---|---|---|"
    for key, each in properties.items():
        yield f"| `{key}` | {_type(each)} | {_cell(each.get('description', ''))} |"
    yield ""
    for key, each in properties.items():
        if key != ABSENT_KEY:
            yield from _inside(f"{path}.{key}" if path else key, each)


def _inside(path: str, schema: Mapping[str, Any]) -> Iterator[str]:
    items = schema.get("items", {})
    if "properties" in schema:
        yield from _sections(path, schema)
    elif "properties" in items:
        described = {**items, "description": schema.get("description", "")}
        yield from _sections(f"{path}[]", described)


def _type(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if "enum" in schema:
        return "string, see below"
    kinds: Any = schema.get("type", "object")
    names: list[str] = [kinds] if isinstance(kinds, str) else list(kinds)
    if names == ["array"]:
        inner = schema["items"].get("type", "object")
        return f"list of {inner}s"
    return " or ".join(names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render_schema_page())
