"""What the site adds to the pages: navigation, and a page for each source file that they link to.

So the pages stay plain Markdown, and the site is complete without the repository.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.osutil import relative_uri

import worker

#: What a browser would load on its own from another server.
FOREIGN = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=["']?(?:https?:)?//|url\(["']?https?:|@import"""
)
NAVIGATION = """

```{{toctree}}
:hidden:
:caption: {caption}

{pages}
```
"""


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    if page == app.config.root_doc:
        for caption, pages in app.config.navigation.items():
            listed = "\n".join(each if "<" in each else f"/{each}" for each in pages)
            source[0] += NAVIGATION.format(caption=caption, pages=listed)


def page_of(file: str) -> str:
    return f"source/{file}"


def link_sources(app: Sphinx, doctree: nodes.document) -> None:
    """Make links to source files lead to pages; otherwise they would be downloads."""
    env: Any = app.env
    linked: set[str] = getattr(env, "linked_sources", set())
    here = app.builder.get_target_uri(env.docname)
    for link in [*doctree.findall(addnodes.download_reference)]:
        file, _ = env.relfn2path(link["reftarget"], env.docname)
        if (app.srcdir / file).is_file() and not file.endswith(".json"):
            linked.add(file)
            uri = relative_uri(here, app.builder.get_target_uri(page_of(file)))
            link.replace_self(nodes.reference("", "", *link.children, refuri=uri))
    env.linked_sources = linked


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Link the public names in the reference to their docstrings."""
    if app.env.docname != "docs/reference":
        return
    for code in [*doctree.findall(nodes.literal)]:
        name = code.astext().partition("(")[0]
        if name in worker.__all__:
            target = {"refdomain": "py", "reftype": "obj", "reftarget": f"worker.{name}"}
            link = addnodes.pending_xref("", code.deepcopy(), refexplicit=True, **target)
            code.replace_self(link)


def readable(*event: Any) -> tuple[str, str] | None:
    """A signature that Python can parse; otherwise it would be shown unformatted."""
    *_, signature, returned = event
    return (signature.replace("<factory>", "..."), returned) if signature else None


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each linked file, with line numbers."""
    formatter = HtmlFormatter(linenos="inline", lineanchors="line", wrapcode=True)
    for file in sorted(getattr(app.env, "linked_sources", set())):
        text = Path(app.srcdir, file).read_text()
        try:
            lexer = get_lexer_for_filename(file)
        except ClassNotFound:
            lexer = TextLexer()
        body = f"<h1>{file}</h1>{highlight(text, lexer, formatter)}"
        yield page_of(file), {"title": file, "body": body}, "page.html"


def check_that_nothing_is_loaded(app: Sphinx, error: Exception | None) -> None:
    """Raise SphinxError if a page needs the internet."""
    pages = [] if error else [*app.outdir.rglob("*.html"), *app.outdir.rglob("*.css")]
    for page in pages:
        if found := FOREIGN.search(page.read_text()):
            raise SphinxError(f"{page} loads something from another server: {found[0]}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("navigation", {}, "env", types=[dict])
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", link_sources, priority=400)  # before downloads are collected
    app.connect("doctree-read", link_names)
    app.connect("autodoc-process-signature", readable)
    app.connect("html-collect-pages", source_pages)
    app.connect("build-finished", check_that_nothing_is_loaded)
    return {"parallel_read_safe": False}
