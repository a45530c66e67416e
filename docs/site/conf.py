"""How `make docs` turns the pages into a site. Neither building nor reading it needs a network."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

project = "Order timeout"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
html_title = f"Order timeout {release}"
root_doc = "docs/index"
# Pages keep the repository's layout, so that links between them work in both places.
include_patterns = [
    *("*.md", "docs/*.md", "docs/*.rst", "orders/features/*/README.md"),
    *("tests/README.md", "tests/faults/README.md", ".github/SECURITY.md"),
]
exclude_patterns = [".git", ".venv*", "build", "node_modules", "data"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "site_pages"]
navigation = {
    "Use it": ["docs/http-api", "docs/payments"],
    "Run it": [
        "docs/operations",
        "docs/upgrading",
        "docs/monitoring",
        "docs/runbook",
        "docs/configuration",
        "docs/install",
        "docs/exposing",
        "docs/failure-modes",
        "docs/performance",
        "docs/capacity",
        "docs/tested-on",
    ],
    "Features": [
        str(page.relative_to(ROOT).with_suffix(""))
        for page in sorted(ROOT.glob("orders/features/*/README.md"))
    ],
    "Copy it": [
        "docs/writing-a-flow",
        "docs/writing-a-feature",
        "docs/copy-it",
        "docs/tour",
        "docs/seeds",
        "docs/reference",
        "docs/api",
    ],
    "Change it": [
        "docs/decisions",
        "docs/proof",
        "README </README>",
        "README, 简体中文 </README.zh-CN>",
        "CONTRIBUTING",
        ".github/SECURITY",
        "CHANGELOG",
        "tests/README",
        "tests/faults/README",
    ],
}
myst_heading_anchors = 4  # named as GitHub names them
myst_linkify_fuzzy_links = False
suppress_warnings = ["myst.header"]

highlight_language = "text"  # of a block that names none
default_role = "py:obj"  # `Name` in a docstring
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "to_the_index.html"}
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
pygments_style, pygments_dark_style = "friendly", "github-dark"
