"""What a page holds, as a parser sees it: elements, attributes and text, apart from style and script."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "wbr", "input", "link"}
DRAWN = {"svg", "title", "desc", "path", "line", "circle", "rect", "polygon", "text"}
WRITTEN = set(
    "html head meta style body a div header span button nav main section article footer script".split()
)
WRITTEN |= set("h1 h2 h3 p ol ul li dl dt dd strong em small code pre i wbr br details summary label".split())
WRITTEN |= set("table caption thead tbody tr th td figure figcaption img select option".split())


class Page(HTMLParser):
    """All elements with their attributes, the text outside style and script, and whether tags match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.unmatched: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.unmatched.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def dangers(page: str) -> list[str]:
    """What a page must not hold: foreign elements, handlers, inline styles, addresses of elsewhere."""
    seen = Page(page)
    found = [f"</{tag}> closes nothing" for tag in seen.unmatched] + [
        f"<{tag}> stays open" for tag in seen.open
    ]
    for tag, attributes in seen.elements:
        if tag not in WRITTEN | DRAWN:
            found.append(f"<{tag}>")
        for name, value in attributes.items():
            if name.startswith("on") or name == "style":
                found.append(f"{tag} {name}")
            if name in ("src", "href", "action", "xlink:href") and not (value or "").startswith(
                ("data:image/png", "#")
            ):
                found.append(f"{tag} {name}={value}")
    if len(seen.named("script")) != 1 or len(seen.named("style")) != 1:
        found.append("more than one script or style")
    return found
