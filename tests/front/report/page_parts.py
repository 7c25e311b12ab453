"""A page taken apart, as a browser would: which elements there are, with which attributes, and the text of each section."""

from html.parser import HTMLParser

EMPTY = {"meta", "img", "input", "br"}


class Parts(HTMLParser):
    """`Parts(page).sections["summary"]` is the text of that section."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.own: dict[str, str] = {"style": "", "script": ""}
        self.stack: list[str] = []
        self.section = ""
        self.unclosed: list[str] = []
        self.feed(page)
        self.close()
        self.unclosed += self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY and not (tag in ("path", "rect") and self.stack and "svg" in self.stack):
            self.stack.append(tag)
        if tag == "section":
            self.section = dict(attrs)["id"]
            self.sections[self.section] = ""

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if self.stack and self.stack[-1] == tag:
            self.stack.pop()
        else:
            self.unclosed.append(tag)
        if tag == "section":
            self.section = ""

    def handle_data(self, data):
        if self.stack and self.stack[-1] in self.own:
            self.own[self.stack[-1]] += data
        if self.section:
            self.sections[self.section] += data

    def count(self, tag: str) -> int:
        return sum(each == tag for each, _ in self.tags)
