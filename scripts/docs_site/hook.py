"""What mkdocs calls while it builds: generated pages join the files, and formulas become MathML.

Pages are made anew when the package, the generator or what they read has changed; else they come from
`.cache/docs_site`, so that a change of one sentence builds in seconds.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".cache" / "docs_site"
PICTURE = re.compile(r'(<img\b[^>]*\bsrc="([^":]+\.(?:png|svg))"[^>]*>)(?!\s*</a>)')


def on_config(config: Any) -> Any:
    """Put the generated pages into the navigation, where mkdocs.yml has the lists of them."""
    for folder in (ROOT, ROOT / "src"):  # here, since mkdocs sets the path back after it has read this file
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    from scripts.docs_site.facts import categories, families

    pages = {
        "metrics.md": [
            {family.capitalize(): [f"metrics/{name}.md" for name in names]}
            for family, names in categories().items()
        ],
        "explainers.md": [
            {family: [f"explainers/{name}.md" for name in names]} for family, names in families().items()
        ],
    }
    for section in config.nav:
        for entries in section.values():
            named = [where for entry in entries if isinstance(entry, dict) for where in entry.values()]
            for listed, generated in pages.items():
                if listed in named:
                    entries += generated
    return config


def on_files(files: Files, config: Any) -> Files:
    from scripts import make_atlas
    from scripts.docs_site import notebooks

    tables = {"atlas/table.html": make_atlas.table()}
    for path, content in {**_cards(), **notebooks.everything(), **tables}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    from scripts.docs_site.mathematics import rendered

    return rendered(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """A picture opens by itself when it is touched: on a phone its letters are small."""
    return PICTURE.sub(r'<a class="picture" href="\2">\1</a>', html)


def _cards() -> dict[str, str | bytes]:
    folder = KEPT / _digest()
    if not folder.is_dir():
        from scripts.docs_site.cards import everything

        made = everything()
        shutil.rmtree(KEPT, ignore_errors=True)
        unfinished = KEPT / f"unfinished-{os.getpid()}"
        for path, content in made.items():
            (unfinished / path).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / path).write_bytes(content.encode() if isinstance(content, str) else content)
        unfinished.rename(folder)
    return {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        if path.suffix == ".md"
        else path.read_bytes()
        for path in sorted(folder.rglob("*.*"))
    }


def _digest() -> str:
    """A number that changes with everything that a generated page is made of."""
    seen = hashlib.blake2b(digest_size=8)
    sources = [
        *(ROOT / "src").rglob("*.py"),
        *Path(__file__).parent.rglob("*.*"),
        ROOT / "docs" / "reliability.json",
    ]
    for path in sorted(path for path in sources if path.is_file()):
        seen.update(path.read_bytes())
    return seen.hexdigest()
