"""The runbook, as docs/runbook.md has it: the entry for one problem, or all of it."""

import re
from functools import cache
from pathlib import Path

from markupsafe import Markup

#: The repository's docs.
RUNBOOK = Path(__file__).parents[2] / "guides" / "runbook.md"


@cache
def entries() -> dict[str, Markup]:
    """Each entry's text by its name; "" is all of it. Links to entries lead there, those to other pages are text."""
    from markdown_it import MarkdownIt  # noqa: PLC0415  every process has this module, and few show it

    markdown = MarkdownIt("commonmark", {"html": False})  # raw HTML is shown as text
    text = re.sub("<!--.*?-->", "", RUNBOOK.read_text("utf-8")).partition("\n")[2]
    text = re.sub(r"\[([^]]+)\]\((?!#)[^)]*\)", r"\1", text)
    found = re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE)
    parts = {"": re.sub("^##", "###", text, flags=re.MULTILINE), **dict(found)}
    names = {name.lower(): name for name in parts}
    return {
        name: Markup(  # noqa: S704  of the repository
            markdown.render(
                re.sub(r"\(#(\w+)\)", lambda to: f"(#runbook?entry={names[to[1]]})", part)
            )
        )
        for name, part in parts.items()
    }
