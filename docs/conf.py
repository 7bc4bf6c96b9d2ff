"""How Sphinx makes the site of these pages: ``make docs``.

The pages are written for GitHub, too. So what only a site has is added as they are read: contents behind the links of
each README, the gallery where a page says ``<!-- gallery -->``, one page of it where it says ``<!-- live: NAME -->``, and
where it says ``<!-- lite -->`` a link to the notebooks, if ``make lite`` makes the site.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jinja2.sandbox import SandboxedEnvironment  # noqa: E402
from numpydoc import docscrape_sphinx  # noqa: E402
from sphinx.search.en import SearchEnglish  # noqa: E402

import gpustreamlab  # noqa: E402
from gpustreamlab.draw._html import bokeh_text, timeline_page, viewer_packed  # noqa: E402
from scripts.record_gallery import GALLERY, NAMES  # noqa: E402

ANSWERING = ("overlap", "utilization", "strays", "stragglers", "idle", "totals", "quality")

project = "gpustreamlab"
author = "The gpustreamlab founders"
project_copyright = author
release = version = gpustreamlab.__version__

extensions = ["myst_parser", "sphinx_design", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
root_doc = "index"
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
default_role = "py:obj"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autosummary_generate = True
# Where names of files know no case, a function would have the page of its answer.
autosummary_filename_map = {f"gpustreamlab.analysis.{name}": f"gpustreamlab.analysis.{name}-of" for name in ANSWERING}
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
environments: dict[str, SandboxedEnvironment] = {}
# Else numpydoc compiles its template anew for each docstring, which is an eighth of a build.
docscrape_sphinx.SandboxedEnvironment = lambda loader: environments.setdefault("", SandboxedEnvironment(loader=loader))
# Else the search index finds the stem of each word anew for each page.
SearchEnglish.stem = cache(SearchEnglish.stem)

html_theme = "pydata_sphinx_theme"
html_title = "gpustreamlab"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},  # the last that fits is taken
}
html_sidebars = {"index": [], "gallery": []}

PAGES = "pages"  # The folder of the site that holds the pages to play with
LITE = "<a href='lite/lab/index.html?path=01-quickstart.ipynb'>Try it in your browser</a>, on the simulated device."
LETTERS = re.compile(r'<script type="text/x-wide" id="gsl-(bokeh|viewer)">.*?</script>\n', re.DOTALL)


def recorded() -> list[str]:
    """Name the entries of the gallery that were recorded."""
    return [name for name in NAMES if (GALLERY / f"{name}.parquet").exists()]


def write_pages(app, error) -> None:
    """Write a page of each recording into the site. What draws them is there once, in a script that all of them load."""
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir) / PAGES
    folder.mkdir(exist_ok=True)
    texts = {"gsl-bokeh": bokeh_text(), "gsl-viewer": viewer_packed()}
    made = "Object.assign(document.createElement('script'), {type: 'text/plain', id, textContent})"
    script = f"for (const [id, textContent] of {json.dumps(list(texts.items()))}) document.body.append({made})\n"
    (folder / "viewer.js").write_text(script, encoding="utf-8")
    for name in recorded():
        page, count = LETTERS.subn("", timeline_page(gpustreamlab.load_trace(GALLERY / f"{name}.parquet")))
        assert count == len(texts)
        page = page.replace('<script type="text/x-wide"', '<script src="viewer.js"></script>\n<script type="text/x-wide"', 1)
        (folder / f"{name}.html").write_text(page, encoding="utf-8")


def write_index_for_machines(app, error) -> None:
    """Write ``llms.txt``: each page as Markdown, by the lists of the READMEs."""
    if error or app.builder.format != "html":
        return
    found = [
        f"# {project}",
        "",
        "> See and steer GPU concurrency from a notebook: streams, SM partitions and a truthful timeline.",
    ]
    for door in ("tutorials", "how-to", "explanations", "reference"):
        text = (Path(app.srcdir) / door / "README.md").read_text(encoding="utf-8")
        found += ["", f"## {door.capitalize()}", ""]
        for title, target, more in re.findall(r"^- \[([^\]]+)\]\(([\w./-]+)\.md\)(.*)$", text, re.MULTILINE):
            docname = posixpath.normpath(f"{door}/{target}")
            found.append(f"- [{title}](_sources/{docname}.md.txt){more}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(found) + "\n", encoding="utf-8")


def add_what_only_a_site_has(app, docname: str, source: list[str]) -> None:
    """Fill in the marks of a page, and list the pages that a README links to as its contents."""
    text = source[0]
    if "<!-- gallery -->" in text:  # else no trace is read: there are hundreds of pages
        text = text.replace("<!-- gallery -->", "\n".join(map(entry, recorded())))
    text = text.replace("<!-- lite -->", LITE if app.tags.has("lite") else "")
    text = re.sub(r"<!-- live: (\w+) -->", lambda found: frame(found[1], depth=docname.count("/")), text)
    if docname.endswith("/README") or docname == "how-to/why-no-overlap":
        links = re.findall(r"^[-|] \[([^\]]+)\]\(([\w./-]+)\.md\)", text, re.MULTILINE)
        text += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(f"{title} <{target}>" for title, target in links) + "\n```\n"
    source[0] = text


def entry(name: str) -> str:
    """Return the part of the gallery for a recording: the question, the page, and what made it."""
    code = (GALLERY / f"{name}.py").read_text(encoding="utf-8")
    question, _, more = (ast.get_docstring(ast.parse(code)) or "").partition("\n\n")
    body = code.split('"""', 2)[2].strip()
    trace = gpustreamlab.load_trace(GALLERY / f"{name}.parquet")
    where = f"{'**SIMULATED**:' if trace.metadata.simulated else 'Recorded on'} {trace.metadata.device_name}"
    alone = f"<a href='{PAGES}/{name}.html'>Open the page alone</a>"
    shown = f":::{{dropdown}} What made it\n```python\n{body}\n```\n:::"
    return f"## {question}\n\n{more}\n\n{where}. {alone}.\n\n{frame(name)}\n\n{shown}\n"


def frame(name: str, depth: int = 0) -> str:
    """Return a frame with a page of the gallery, in HTML."""
    place = "../" * depth + f"{PAGES}/{name}.html"
    return f'<iframe class="gsl-live" src="{place}" title="Timeline: {name.replace("_", " ")}" loading="lazy"></iframe>'


def setup(app) -> None:
    """Tell Sphinx of the steps above."""
    app.connect("source-read", add_what_only_a_site_has)
    app.connect("build-finished", write_pages)
    app.connect("build-finished", write_index_for_machines)
