"""Takes secrets out of text: what variables and options of a secret name hold, passwords of URLs, tokens by shape.

Signatures are made of text without secrets on both sides, in the watched program and in a script, so that they still
match. This file's text is pasted into standalone repro scripts: standard library only.
"""

import json
import os
import re
import sys
from collections.abc import Mapping

HIDDEN_SECRET = "<hidden>"
_HIDE_VARIABLE = re.compile(
    r"(?:^|_)KEYS?(?:_|$)|TOKEN(?!IZ|S)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE"
    r"|^(?!TORCH|.*GRAD).*(?:^|_)(?:PASS|PWD|PW)$",
    re.IGNORECASE,
)
_HIDE_STRONG = (
    r"(?:passw(?:or)?d|passphrase|secret|credentials?"
    r"|(?:api|access|account|secret|private|auth|signing|encryption)[_-]?key)"
)
_HIDE_PART = r"[^\s'\"\\,;&)<>]"  # of a value that stands without quotes
_HIDE_MIXED = rf"(?={_HIDE_PART}*\d)(?={_HIDE_PART}*[A-Za-z])"
_HIDE_GIVEN = r"(?:==|!=|[=:]|\bis(?:\s+not)?\b)\s*"  # a value to something: assigned, or compared by a guard
_HIDE_OPTION = re.compile(
    rf"(--[\w-]*(?:{_HIDE_STRONG}|token|auth))(=|\s+)(?!-)([^\s'\"\\,)]+)", re.IGNORECASE
)
_HIDE_LIKELY_OPTION = re.compile(
    rf"((?<![\w-])(?:--(?:[\w-]*-)?(?:pass|pwd|key)|-p))(=|\s+)(?![\w.]*[/:]){_HIDE_MIXED}({_HIDE_PART}{{6,}})",
    re.IGNORECASE,
)
_HIDE_REWRITES = [
    (re.compile(r"(?<=://)[^/\s@'\"\\]+(?=@)"), HIDDEN_SECRET),  # of a URL: name and password
    (_HIDE_OPTION, rf"\1\2{HIDDEN_SECRET}"),
    # Of an option that often is none (`mkdir -p x86`): only of programs in Python and of those that ask for passwords.
    (
        re.compile(
            rf"((?:\.py|-m\s+[\w.]+|\b(?:sshpass|mysql\w*|docker\s+login))\b[^\n|;]*?\s)"
            rf"{_HIDE_LIKELY_OPTION.pattern}",
            re.IGNORECASE,
        ),
        rf"\1\2\3{HIDDEN_SECRET}",
    ),
    (re.compile(r"(\bsshpass\s+-p\s*|\bmysql\w*\s[^\n|;]*?-p(?=\S))[^\s'\"]+"), rf"\1{HIDDEN_SECRET}"),
    (re.compile(r"(\bcurl\s[^\n|;]*?(?:-u|--user)[=\s]*['\"]?[^\s:'\"]+:)[^\s'\"]+"), rf"\1{HIDDEN_SECRET}"),
    (re.compile(r"(\blogin\s+\S+\s+password\s+)\S+"), rf"\1{HIDDEN_SECRET}"),  # .netrc
    # Something of such a name that is given a value, in quotes or without; a token only where the value could be one.
    (
        re.compile(
            rf"({_HIDE_STRONG}\\*['\"]?\]?\s*{_HIDE_GIVEN}[rbu]?(\\*['\"]))(?:(?!\2)[^\n])+(?=\2)",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    (
        re.compile(
            rf"({_HIDE_STRONG}\\*['\"]?\]?\s*(?:==|!=|[=:])\s*\\*['\"]?)"
            rf"(?!(?:None|True|False|null|str|int|bytes)\b){_HIDE_PART}{{3,}}",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    (
        re.compile(
            rf"((?:token|auth|cookie|signature)\\*['\"]?\]?\s*{_HIDE_GIVEN}\\*['\"]?)"
            rf"(?={_HIDE_PART}*\d){_HIDE_PART}{{8,}}",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    (
        re.compile(
            rf"((?:\b|_)(?:pass|pwd)\\*['\"]?\]?\s*{_HIDE_GIVEN}\\*['\"]?)(?![a-z]+(?:_[a-z0-9]+)+\b|[~/.])"
            rf"{_HIDE_MIXED}{_HIDE_PART}{{6,}}",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    (re.compile(rf"(\b[A-Z0-9_]*_(?:PASS|PWD|PW)=['\"]?)(?![~/]){_HIDE_PART}{{3,}}"), rf"\1{HIDDEN_SECRET}"),
    (re.compile(r"(;\s*(?:pwd|password)=)[^;'\"\n]+", re.IGNORECASE), rf"\1{HIDDEN_SECRET}"),
    (re.compile(r"([?&;]sig=)[^\s&'\"\\<>]{8,}"), rf"\1{HIDDEN_SECRET}"),
    (
        re.compile(
            r"(\bAuthorization\\*['\"]?\]?\s*[:=]\s*\\*['\"]?(?:[A-Za-z]+\s+)?)(?![A-Za-z]+\s+<)[^\s'\"\\,;<>]{6,}",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    (
        re.compile(
            r"(\b(?:Set-)?Cookie\\*['\"]?\s*[:=]\s*\\*['\"]?)(?=[^\n'\"\\]*=)[^\n'\"\\]+", re.IGNORECASE
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    (
        re.compile(
            r"\b(Bearer|Basic)(\s+)(?:(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{20,})", re.IGNORECASE
        ),
        rf"\1\2{HIDDEN_SECRET}",
    ),
    (
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
            r"|sk-(?=[\w-]*\d)[\w-]{16,}|xox[a-z]-(?=[\w-]*\d)[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
            r"|AIza[\w-]{20,}|eyJ[\w-]{10,}\.[\w.-]+|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|npm_[A-Za-z0-9]{20,}"
            r"|pypi-[\w-]{16,}|nvapi-[\w-]{16,}|gsk_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{16,})"
        ),
        HIDDEN_SECRET,
    ),
    (re.compile(r"(\bhooks\.slack\.com/(?:services|workflows|triggers)/)[\w/+-]+"), rf"\1{HIDDEN_SECRET}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY[A-Za-z0-9+/=\s\\-]*"), HIDDEN_SECRET),
]


def hide_secrets(text: str, values: tuple[str, ...] | None = None) -> str:
    """The text with `<hidden>` in place of secrets; `values` are those of this process unless they are given.

    >>> hide_secrets("the word was k3y-k3y", ("k3y-k3y",))
    'the word was <hidden>'
    """
    for value in secret_values(os.environ, sys.orig_argv) if values is None else values:
        if value in text:
            # A short one could be a part of a word that has nothing to do with it.
            edge = ("", "") if len(value) >= 12 else (r"(?<!\w)", r"(?!\w)")
            text = re.sub(edge[0] + re.escape(value) + edge[1], HIDDEN_SECRET, text)
    for pattern, replacement in _HIDE_REWRITES:
        text = pattern.sub(replacement, text)
    return text


def hide_in_words(words: list[str]) -> list[str]:
    """A command line without secrets: `hide_in_words(["--token", "x1"]) == ["--token", "<hidden>"]`."""
    given = secret_values({}, words)
    return [hide_secrets(HIDDEN_SECRET if word in given else word, given) for word in words]


def secret_values(environment: Mapping[str, str], words: list[str]) -> tuple[str, ...]:
    """What variables and options of a secret name hold, longest first: `secret_values(os.environ, sys.argv)`.

    A value that could be any word ("false", "1") is none: taken out wherever it occurs, it would take the sense along.
    """
    found = {value for name, value in environment.items() if _HIDE_VARIABLE.search(name)}
    for value in environment.values():  # the password of a URL, also where it occurs alone
        found.update(re.findall(r"://[^/\s@:]*:([^/\s@]+)@", value))
    found.update(line.strip() for value in list(found) for line in value.splitlines())
    found = {
        v for v in found if not v.startswith("/") and (len(v) >= 8 or (len(v) >= 6 and re.search(r"\d", v)))
    }
    for word, following in zip(words, [*words[1:], ""]):
        pair = word if "=" in word else f"{word} {following}".strip()
        match = _HIDE_OPTION.fullmatch(pair) or _HIDE_LIKELY_OPTION.fullmatch(pair)
        if match and len(match[3]) > 2:
            found.add(match[3])
        if word in ("-u", "--user") and re.fullmatch(r"[^\s:/]+:[^\s/:]+", following):
            found.add(following.partition(":")[2])
    # As they stand in the text of an error, and in a document.
    found |= {shown(value)[1:-1] for value in found for shown in (repr, json.dumps)}
    return tuple(sorted(found - {HIDDEN_SECRET, ""}, key=len, reverse=True))
