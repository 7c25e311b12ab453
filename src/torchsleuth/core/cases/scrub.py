"""What is written into a case carries no secrets, and of the person's machine no more than it must.

Every text of a case passes through `scrubbed` on its way to the disk, and `hidden` on its way to a terminal or a page.
Two kinds of rules take secrets out: ours (`script_runtime/hiding.py`, which standalone scripts carry along) know what
variables, options and assignments of a secret name hold; published ones (`secret_shapes.json`, those of gitleaks under
its licence) know tokens of two hundred services by their shape. Secrets go everywhere; the home folder becomes
`~` and the user's name `user`, but not inside a script's code, where a path that is needed would lead nowhere. Of the
environment only what torch and its compilers read is kept, so that nothing personal comes along by chance. And what a
stranger's case says goes through `printable` on its way to a terminal: escape sequences that move the cursor, control
characters, marks that turn the reading direction.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import io
import json
import math
import os
import re
import sys
import tokenize
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from torchsleuth.script_runtime.hiding import HIDDEN_SECRET, hide_in_words, hide_secrets, secret_values

_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
# What stands before a string that nothing is done with: a docstring.
_BEFORE_DOCSTRING = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, -1}
# What of a record becomes part of a script.
_CODE = {"embedded", "imports", "options", "config", "compile_kwargs"}
_NAMED = re.compile(
    r"(?i)(?:passw(?:or)?d|passphrase|secret|credentials?|(?:api|access|secret|private|auth)[_-]?key|token)['\"]?"
    r"\s*(?::\s*\w+\s*)?[=:]\s*[rbu]*$"
)


def scrubbed(name: str, text: str, *, everywhere: bool = False) -> str:
    """The text of a file as it may be kept; `everywhere` shortens paths in code, too.

    >>> scrubbed("log.txt", "--token=abc123"), scrubbed("repro.py", "secret = 'abc'")
    ('--token=<hidden>', "secret = '<hidden>'")
    """
    if name.endswith(".py"):
        return _python(text, paths="all" if everywhere else "prose")
    if name.endswith(".json"):
        try:
            doc = json.loads(text)
        except (ValueError, RecursionError):
            return shortened(hidden(text))
        return json.dumps(_Walk(everywhere, _values_if_any(doc)).value(doc, ""), indent=1) + "\n"
    if name.endswith(".html"):
        parts = _OWN_OF_A_PAGE.split(text)
        return "".join(part if at % 2 else shortened(hidden(part)) for at, part in enumerate(parts))
    return shortened(hidden(text))


# A page's own style and code, their hashes in its policy, and drawings look random; without them it is no page.
_OWN_OF_A_PAGE = re.compile(
    r"""('sha256-[\w+/]{43}='|<style>.*?</style>|<script>.*?</script>|src="data:[^"]{0,400000}")""", re.DOTALL
)


def without_secrets_in(document: object) -> object:
    """A JSON document, its strings free of secrets: `without_secrets_in({"token": "abc"}) == {"token": "<hidden>"}`."""
    values = _values_if_any(document)
    return document if values is None else _Walk(True, values, paths=False).value(document, "")


def _values_if_any(document: object) -> tuple[str, ...] | None:
    """The secrets to take out of a document; None where there are none in it.

    Most hold none, which is quicker to see in one text than in thousands of strings, as they are and not as a document
    escapes them.
    """
    values = secret_values(os.environ, sys.orig_argv)
    text = "\n".join(_strings(document))
    return values if hidden(text, values) != text else None


def _strings(document: object, key: str = "") -> Iterator[str]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield from _strings(value, str(name))
    elif isinstance(document, list):
        for each in document:
            yield from _strings(each)
    elif isinstance(document, str):
        yield document
        if _NAMED.search(f"{key}="):
            yield f"password='{document}'"


@dataclass(frozen=True)
class _Walk:
    """Through all strings of a document; `values` are the secrets to take out, None where there are none in it."""

    everywhere: bool
    values: tuple[str, ...] | None
    paths: bool = True

    def value(self, doc: object, key: str, code: bool = False) -> object:
        """`code` is true below the keys of `_CODE`: the strings there are parts of scripts."""
        if isinstance(doc, dict):
            return {k: self.value(v, k, code or k in _CODE) for k, v in doc.items()}
        if isinstance(doc, list):
            if any(isinstance(each, str) and each.startswith("--") for each in doc):
                doc = hide_in_words(doc) if all(isinstance(each, str) for each in doc) else doc
            return [self.value(each, "", code) for each in doc]
        if not isinstance(doc, str):
            return doc
        if self.values is not None:
            doc = HIDDEN_SECRET if _NAMED.search(f"{key}=") else hidden(doc, self.values)
        return doc if not self.paths or (code and not self.everywhere) else shortened(doc)


def without_secrets(source: str) -> str:
    """Python text with its strings and comments free of secrets, and all else as it was."""
    return _python(source, paths="none")


def shortened(text: str) -> str:
    """Without the home folder and the name of this user: `/home/ada/model.py` becomes `~/model.py`."""
    home, user = os.path.expanduser("~").rstrip("/\\"), _user()
    if len(home) > 1 and home in text:
        text = re.sub(rf"(?<![\w./-]){re.escape(home)}(?![\w.-])", "~", text)
    if user and user in text:
        for before in ("torchinductor_", "/home/", "/Users/"):
            text = re.sub(rf"(?<={before}){re.escape(user)}(?![\w.-])", "user", text)
    return text


_OWN_ROOTS = {
    "home",
    "Users",
    "root",
    "mnt",
    "data",
    "scratch",
    "tmp",
    "var",
    "opt",
    "work",
    "srv",
    "media",
    "Volumes",
}
_SYSTEM = {
    "bin",
    "boot",
    "dev",
    "etc",
    "lib",
    "lib32",
    "lib64",
    "proc",
    "run",
    "sbin",
    "sys",
    "usr",
    "lost+found",
}


def _roots() -> str:
    """The top folders below which a path says something of a machine: the usual ones, and what this one has."""
    with contextlib.suppress(OSError):
        return "|".join(sorted(map(re.escape, (_OWN_ROOTS | set(os.listdir("/"))) - _SYSTEM)))
    return "|".join(sorted(_OWN_ROOTS))


@functools.cache
def path_of_machine(quoted: bool = False) -> re.Pattern[str]:
    """Finds paths of a machine, or only those right behind a quote: `path_of_machine().search("in /tmp/x")`."""
    pattern = rf"(?<![\w.:/~])(?:~|/(?:{_roots()})(?![\w.-]))[\w.+@%~-]*(?:/[\w.+@%~-]+)*/?"
    return re.compile(rf"(?<=['\"]){pattern}" if quoted else pattern)


INSTALLED = re.compile(r"(?:~|/)?[\w.+@%~/-]*/(?:site|dist)-packages/")


def last_part(found: re.Match[str]) -> str:
    """Of a path, what a reader needs: `/home/ada/models/unet.py` becomes `unet.py`."""
    return found[0].rstrip("/").rpartition("/")[2] or "~"


def without_paths(name: str, text: str, project: str) -> str:
    """A text for others: paths below the program's folder relative to it, of a package by its name, of others the end.

    >>> without_paths("log.txt", "/data/p/m/net.py, /data/x/cache and /v/site-packages/torch/fx/graph.py", "/data/p")
    'm/net.py, cache and torch/fx/graph.py'
    """
    if len(project.rstrip("/")) > 1:
        text = re.sub(rf"(?<![\w./-]){re.escape(project.rstrip('/'))}/", "", text)
    text = INSTALLED.sub("", text)
    if not name.endswith(".py"):
        return path_of_machine().sub(last_part, text)
    prose = (
        path_of_machine().sub(last_part, line) if line.lstrip().startswith("#") else line
        for line in text.splitlines(keepends=True)
    )
    return path_of_machine(quoted=True).sub(
        last_part, "".join(prose)
    )  # a division or a regular expression stays what it is


@functools.cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _python(source: str, paths: str) -> str:
    """Only strings and comments change, so that the rest stays the program it was; `paths` that are shortened: all,
    those in prose, none."""
    values = secret_values(os.environ, sys.orig_argv)
    if hidden(source, values) == source and (paths == "none" or shortened(source) == source):
        return source
    lines = source.splitlines(keepends=True)
    edits: list[tuple[tuple[int, int], tuple[int, int], str]] = []
    before = -1
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type in _STRINGS or token.type == tokenize.COMMENT:
                old = _slice(lines, token.start, token.end)
                new = hidden(old, values)
                prefix = lines[token.start[0] - 1][: token.start[1]]
                if token.type == tokenize.STRING and _NAMED.search(prefix):
                    new = re.sub(r"(?s)^(\w*)('''|\"\"\"|'|\").+\2$", rf"\1\2{HIDDEN_SECRET}\2", new)
                prose = token.type == tokenize.COMMENT or before in _BEFORE_DOCSTRING
                if paths == "all" or (prose and paths == "prose"):
                    new = shortened(new)
                if new != old:
                    edits.append((token.start, token.end, new))
            before = token.type
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return scrubbed("text", source)  # nobody can run it
    for (row, column), (last, end), new in reversed(edits):
        tail = lines[last - 1][end:]
        lines[row - 1 : last] = [lines[row - 1][:column] + new + tail]
    return "".join(lines)


def _slice(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    if start[0] == end[0]:
        return lines[start[0] - 1][start[1] : end[1]]
    middle = lines[start[0] : end[0] - 1]
    return "".join([lines[start[0] - 1][start[1] :], *middle, lines[end[0] - 1][: end[1]]])


@dataclass(frozen=True)
class Shape:
    """How tokens of one service look: words of which one stands near, an expression, which group of it, how random.

    What is less random than that, a hash or the name of a kernel, is none.
    """

    name: str
    words: tuple[str, ...]
    expression: str
    group: int
    entropy: float

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.expression)

    def hide(self, match: re.Match[str]) -> str:
        """The match with its secret hidden, or as it was."""
        group = self.group or match.lastindex or 0
        secret = match[group]
        if not secret or HIDDEN_SECRET in secret or _entropy(secret) < self.entropy:
            return match[0]
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + HIDDEN_SECRET + match[0][end:]


def hidden(text: str, values: tuple[str, ...] | None = None) -> str:
    """The text without secrets; `values` are those that this process knows unless they are given.

    >>> hidden("xoxb-1234567890-abcdef and dop_v1_" + 8 * "0a1b2c3d", ())
    '<hidden> and <hidden>'
    """
    text = hide_secrets(text, values)
    small = text.lower()
    if not _published_words().search(small):
        return text
    for shape in published():
        if any(word in small for word in shape.words):
            text = shape.pattern.sub(shape.hide, text)
    return text


@functools.cache
def published() -> tuple[Shape, ...]:
    """The published rules, as they stand in the file."""
    text = files("torchsleuth.core.cases").joinpath("secret_shapes.json").read_text("utf-8")
    return tuple(
        Shape(
            rule["id"],
            tuple(rule["keywords"]),
            rule["regex"],
            rule.get("group", 0),
            rule.get("entropy", 0.0),
        )
        for rule in json.loads(text)["rules"]
    )


@functools.cache
def _published_words() -> re.Pattern[str]:
    """Any of the words: most texts of a page hold none, and one look is quicker than two hundred."""
    return re.compile("|".join(sorted({re.escape(word) for shape in published() for word in shape.words})))


def _entropy(text: str) -> float:
    """Bits of a character, were each drawn by itself."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


_READ_BY_TORCH = re.compile(
    r"(?:TORCH|PYTORCH_|AOT|TRITON_|INDUCTOR_|FUNCTORCH_|PARTITIONER_|CUTLASS_|CUTEDSL_|HALIDE_|NCCL_|PT2_).+"
    r"|(?:DNNL_|ONEDNN_|KMP_|GOMP_|MKL_|OMP_|CUBLAS_|CUDNN_).+|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES"
    r"|CUDA_(?:DEVICE_ORDER|HOME|LAUNCH_BLOCKING|MODULE_LOADING|PATH)|ROCM_(?:HOME|PATH)|CC|CXX|CUDACXX"
    r"|ATEN_CPU_CAPABILITY|ENABLE_PERSISTENT_TMA_MATMUL|MAX_JOBS|NVIDIA_TF32_OVERRIDE|PYTHONHASHSEED"
    r"|(?:LOCAL_)?RANK|(?:LOCAL_)?WORLD_SIZE|TENSORIFY_PYTHON_SCALARS"
)
_SECRET_NAME = re.compile(r"(?:^|_)KEYS?(?:_|$)|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE")
_SECRET_VALUE = re.compile(r"-----BEGIN|\bBearer\s|(?i:(?:password|passwd|token|secret|api_?key)\s*[=:])")
_FRAGMENT = re.compile(r"[A-Za-z0-9+_-]{24,}")
HIDDEN = HIDDEN_SECRET


def environment_of(env: Mapping[str, str]) -> dict[str, str]:
    """What of the environment a case keeps, sorted by name.

    `environment_of({"TORCH_LOGS": "+dynamo", "HOME": "/home/ada"}) == {"TORCH_LOGS": "+dynamo"}`
    """
    home = env.get("HOME") or env.get("USERPROFILE") or ""
    kept = sorted(name for name in env if _READ_BY_TORCH.fullmatch(name))
    return {name: HIDDEN if looks_secret(name, env[name]) else shorten_home(env[name], home) for name in kept}


def looks_secret(name: str, value: str) -> bool:
    """Whether this variable must not leave the machine: `looks_secret("TORCH_HUB_TOKEN", "x")`."""
    if value and _SECRET_NAME.search(name.upper()):
        return True
    if _SECRET_VALUE.search(value) or hidden(value, ()) != value:
        return True
    return any(map(_looks_random, _FRAGMENT.findall(value)))


def shorten_home(text: str, home: str) -> str:
    """Paths below the home directory start with `~`: `shorten_home("/home/ada/c", "/home/ada") == "~/c"`."""
    home = home.rstrip("/\\")
    if not home:
        return text
    return re.sub(re.escape(home) + r"(?![\w.-])", "~", text)


def _looks_random(fragment: str) -> bool:
    """Long, and upper, lower and digits mixed: words and option names are not."""
    return all(re.search(kind, fragment) for kind in ("[A-Z]", "[a-z]", "[0-9].*[0-9]"))


_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-9;:<=>?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
)
# Cc control, Cf direction and invisible marks, Cs half a surrogate pair, Co private use, Cn unassigned.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


# What a person reads of one value; a stranger's may be megabytes long.
MOST = 4000


def printable(text: str, lines: bool = False, most: int = MOST) -> str:
    """The text without anything a terminal would obey: `printable("a\\x1b[31mb\\nc") == "ab c"`.

    Newlines and tabs become spaces, unless `lines` keeps them. Of a long text the beginning is kept.
    """
    rest = len(text) - most
    text = text if rest <= 0 else text[:most]
    if not text.isprintable():
        text = _ESCAPE.sub("", text.replace("\r\n", "\n"))
        text = "".join(_shown(char, lines) for char in text)
    return text if rest <= 0 else f"{text} … and {rest} more characters"


def _shown(char: str, lines: bool) -> str:
    if char in "\n\t":
        return char if lines else " "
    return "" if unicodedata.category(char) in _HIDDEN else char
