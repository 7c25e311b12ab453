"""Takes secrets out of text: what stands where a secret stands, and what is too random to be anything else.

The idea: something of a *secret name* is *given* a *value*, and each of the three comes in many forms - a variable,
an option, a guard, a key of a document, an element, an argument; assigned, compared, told in a sentence. Names of
which every value is one (password, api_key, hf_token) are told from those that need a second look at the value
(token, key, pass). Signatures are made of text without secrets on both sides, in the watched program and in a script,
so that they still match. This file's text is pasted into standalone repro scripts: standard library only.
"""

import base64
import json
import os
import re
import sys
from collections.abc import Mapping
from itertools import pairwise
from urllib.parse import quote, quote_plus

HIDDEN_SECRET = "<hidden>"
_HIDE_VARIABLE = re.compile(
    r"(?:^|_)KEYS?\d*(?:_|$)|API_?KEY|TOKEN(?!IZ|S)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE|JWT|MNEMONIC"
    r"|^(?!TORCH|.*GRAD).*(?:^|_|DB|SQL|PG|USER|ROOT|ADMIN)(?:PASS|PWD|PW)\d*$|(?:^|_)(?:PAT|PIN|OTP|DSN|SIG)$",
    re.IGNORECASE,
)
# Names as they are said elsewhere; a document within a document has their letters by number.
_HIDE_FOREIGN = "contraseña|пароль|пароля|密码|密碼|パスワード|비밀번호|hasło|salasana|lösenord|senha|şifre"
_HIDE_NUMBERED = "".join(c if c.isascii() else rf"\\{{1,9}}u{ord(c):04x}" for c in _HIDE_FOREIGN)
# Whose value is a secret whatever it looks like.
_HIDE_STRONG = (
    r"(?:passw(?:or)?d|passwort|kennwort|passphrase|pass[_-]?code|contrasena|mot[_ ]de[_ ]passe|wachtwoord"
    rf"|{_HIDE_FOREIGN}|{_HIDE_NUMBERED}"
    r"|\bw?psk\b|(?<!to)(?<!in)secret|\bcreds?\b|credentials?"
    r"|(?:db|user|usr|store|key|trust|cert|sign|sudo|su|ssh|ftp|smtp|imap|root|admin|login|become|http|proxy|mail|redis|sql|pg|ldap|bind)[_-]?"
    r"(?:pass|pwd|pw)"
    r"|(?:api|access|account|secret|private|auth|signing|encryption|wandb|openai|hf|hub"
    r"|comet|neptune|aws|azure|gcp|google|master"
    r"|licen[cs]e|storage[_-]account|shared(?:access)?|client|consumer"
    r"|service|subscription|deploy|ssh|host|admin|hmac"
    r"|crypt\w*|rsa|session|fernet|jwt|pre[_-]?shared|webhook|root|user|app)[_. -]?key"
    r"(?:[_-]data)?(?![_-]?(?:id|path|file|name|type|len|dim|size|hash|state|proj|value|pad|shape|cache|mask|error))"
    r"|(?:api|(?<![a-z])id|hf|hub|access|auth|refresh|session|bearer|personal|bot|csrf|xsrf|jwt|security|oauth|upload|deploy|gitlab"
    r"|github|huggingface|wandb|slack|login|user|service|private)[_.-]?token(?!s|iz|[_-]?(?:id|type|len|dim|index))"
    r"|session[_-]?id|otp[_-]?code|mnemonic|(?:seed|recovery)[_ ]phrase|connection[_-]?string)"
)
_HIDE_PART = r"(?:(?!%26|&(?:quot|#3[49]|amp);)[^\s'\"\\,;&)<>\]}])"  # of a value that stands without quotes
_HIDE_MIXED = rf"(?={_HIDE_PART}*\d)(?={_HIDE_PART}*[A-Za-z])"
_HIDE_QUOTE = r"(?:'''|\"\"\"|\\{0,9}['\"]|&quot;|&#3[49];|%2[27]|\\+u002[27])"
# What may stand between a name and what it is given: the end of a name in quotes or brackets, its type.
_HIDE_CLOSED = (
    rf"[\w-]*{_HIDE_QUOTE}?[\])]?(?:\[\d+\])?(?: \((?:type: )?\w+\))?(?: (?:provided|given|supplied|used))?"
)
_HIDE_GIVEN = (
    r"(?:[ \t]*(?:==|!=|[=-]>|:?=\s*|:|(?<=[ \t])\|[ \t](?=[^|\n]*\|)|%3[AaDd]|\b(?:is(?:\s+not)?|ist|lautet|est|es)\b"
    r"|:[ \t]*\w+[ \t]*=)"
    r"[ \t]*(?:[|>][+-]?[ \t]*(?:\n|\\+n)?\s*)?|(?:\t|\\+t))"
)
_HIDE_TYPE = (
    r"(?!(?:None|True|False|null|true|false|str|int|bool|float|bytes|list|dict|tuple|Optional|Union|object|Any|Tensor"
    r"|tensor|datetime)\b)"
)
# A call, a name of an object's, a number: what a line of source has there.
_HIDE_CODE = (
    r"(?!`?[A-Za-z_][\w.]*[(\[]|(?:self|torch|cls|args|cfg|config|os|hf|kwargs|np)\."
    r"|\$|\{|%[sdr(]|-?\d{1,5}(?:\.\d*)?\b(?![\w-]))"
)
_HIDE_OPTION = re.compile(
    rf"((?<![\w-])--[\w.-]{{0,60}}?(?:{_HIDE_STRONG}|token|auth))(=|\s+|(?:\\*['\"],\s*(?:[^()\n]*?\bdefault=)?|=|\s+)\\*['\"])(?!-)([^\s'\"\\,)]+)",
    re.IGNORECASE,
)
_HIDE_LIKELY_OPTION = re.compile(
    rf"((?<![\w-])(?:--(?:[\w-]*-)?(?:pass|pwd|pw|key)|-p))(=|\s+)(?![\w.]*[/:]){_HIDE_MIXED}({_HIDE_PART}{{6,}})",
    re.IGNORECASE,
)
_HIDE_NO_WORD = (
    r"(?!(?:not|wrong|required|provided|specified|found|known|stored|saved|valid|accepted|rejected|correct|shown|read|missing|empty"
    r"|invalid|incorrect|expired|needed|set|unset|too|the|an?|no|never|always|used|only|of|for"
    r"|is|are|was|were|to|in|by|from|that|this|must|should|cannot|optional|given|hidden|shorter|longer|tensor|None|True|False)\b)"
)


def _hide_rule(before: str, value: str, after: str = "") -> tuple[re.Pattern[str], str]:
    """What stands before a secret, which stays, and how the secret looks."""
    return re.compile(rf"(?i)({before}){value}{after}"), rf"\g<1>{HIDDEN_SECRET}"


_HIDE_REWRITES = [
    _hide_rule(r"://", r"(?:<hidden>|[^/\s@'\"\\<\[])+(?=@)"),  # of a URL: name and password
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
    # Programs that are given a password in their own way.
    _hide_rule(
        r"\b(?:sshpass\s+-p|redis-cli\b[^\n|;]*?\s-a"
        r"|sqlplus\s+\w+/|(?:un)?zip\b[^\n|;]*?\s-P"
        r"|wandb\s+login"
        r"|smbclient\b[^\n|;]*?-U\s*[\w.]+%|pass(?:in|out)?\s+pass:|htpasswd\s+-b\S*\s+\S+\s+\S+"
        r"|login\s+\S+\s+password)[ \t]*",
        r"(?!-)[^\s'\"]+",
    ),
    # A command that names a user and goes on with a password.
    _hide_rule(
        r"\s(?:-[uUDl]|--?user(?:name)?|--login)[=\s]+\S+\s(?:[^\n|;]*?\s)?-[pPwW](?:[ \t]+|=)",
        r"(?!-|[\d.:/]+(?:\s|$)|~|\$|/)[^\s'\"]{4,}",
    ),
    # `host:port:database:user:` of a .pgpass.
    _hide_rule(
        r"(?m:^|(?<=\s)|(?<=['\"]))[\w.*-]+:(?:\d{4,5}|\*):[\w*.-]+:[\w.-]+:", r"[^\s:'\"]{4,}(?=['\"\s]|$)"
    ),
    _hide_rule(r"\b(?:mysql\w*\s[^\n|;]*?|7za?\s[^\n|;]*?)-p(?=\S)", r"[^\s'\"]+"),
    _hide_rule(r"\b(?:curl|https?)\s[^\n|;]*?(?:-u|-a|--user|--auth)[=\s]*['\"]?[^\s:'\"]+:", r"[^\s'\"]+"),
    _hide_rule(r"\bcurl\s[^\n|;]*?(?:-b|--cookie)[=\s]*['\"]?[^\s='\"]+=", r"[^\s'\"]+"),
    _hide_rule(r"\becho\s+['\"]?", r"[^\s'\"|]+", r"(?=['\"]?\s*\|\s*(?:sudo|docker\s+login|\S*pass))"),
    # A value in quotes, also of several words; an element; a pair; the value of a variable in a document of variables.
    (
        re.compile(
            rf"(?i)({_HIDE_STRONG}{_HIDE_CLOSED}{_HIDE_GIVEN}[rbuf]?({_HIDE_QUOTE}))(?:(?!\2)[^\n])+?(?=\2)"
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    _hide_rule(rf"<[\w:.-]*{_HIDE_STRONG}[\w:.-]*>", r"[^<\n]+(?=</)"),
    (
        re.compile(
            rf"(?i)(\(\s*b?({_HIDE_QUOTE})[\w.-]*{_HIDE_STRONG}\2\s*,\s*b?({_HIDE_QUOTE}))(?:(?!\3)[^\n])+(?=\3)"
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    _hide_rule(
        rf"(?:name|key|id|variable){_HIDE_QUOTE}?\s*[:=]\s*{_HIDE_QUOTE}?[\w.-]*{_HIDE_STRONG}[\w.-]*{_HIDE_QUOTE}?\s*,?(?:\\n)?\s*"
        rf"{_HIDE_QUOTE}?value{_HIDE_QUOTE}?\s*[:=]\s*{_HIDE_QUOTE}?",
        rf"{_HIDE_PART}+",
    ),
    _hide_rule(
        rf"(?<![\w-])(?P<name>[\w-]{{0,60}}?{_HIDE_STRONG}[\w-]{{0,60}}){_HIDE_CLOSED}(?!\s+is\b){_HIDE_GIVEN}(?:[rbuf]?{_HIDE_QUOTE})?(?:![a-z]+\s+)?",
        rf"(?!(?:[\w.]+\.)?(?P=name)\b){_HIDE_TYPE}(?!(?:the|an?|password|string|optional|required|to)\b){_HIDE_CODE}{_HIDE_PART}{{3,}}",
    ),
    # A key at the beginning of a line holds what follows, also several words.
    _hide_rule(
        rf"(?m:^|(?<=['\"]))[ \t]*[\w.-]{{0,60}}?{_HIDE_STRONG}\s*:[ \t]+<hidden>",
        r"(?: [\w-]+){1,24}(?m:$|(?=['\"]))",
    ),
    _hide_rule(
        rf"\b{_HIDE_STRONG}['\"]?\s+(?:(?:of|for|to|at|on) (?:\w+ )?\w+ )?(?:is|was)\s+['\"]?",
        rf"{_HIDE_NO_WORD}{_HIDE_PART}{{6,}}(?=['\".,;!]?(?:\s*(?m:$)|['\",;\\]|\.\s))",
    ),
    _hide_rule(
        rf"(?<![A-Za-z]){_HIDE_STRONG}(?:s?\.(?!py)\w+|[^\n]{{0,40}}\s(?:back|default\w*) to)?\s+['\"]?",
        rf"(?={_HIDE_PART}*[\d!$%*+?^~#]){_HIDE_MIXED}(?!\w*\(){_HIDE_PART}{{8,}}",
    ),
    _hide_rule(r"\b(?:credentials?|log(?:ged)? in (?:with|as))\s+['\"]?[\w.@-]+[/:]", rf"{_HIDE_PART}{{6,}}"),
    _hide_rule(r"\b(?:pin|otp|2fa)(?:[_ ]code)?['\"]?\s*[:=]\s*['\"]?", r"\d{4,8}\b"),
    _hide_rule(
        r"\b(?:pw|pwd|pass)['\"]?\]?\s*(?:==|[=:])\s*[rb]?['\"]",
        r"(?!\w+_\w+['\"]|/|~)[^'\"\s/]{6,}(?=['\"])",
    ),
    # Of a name that is often no secret's: only where the value could be one.
    _hide_rule(
        rf"(?:token|auth|cookie)\\*['\"]?\]?{_HIDE_GIVEN}\\*['\"]?",
        rf"(?!\w+_token\b){_HIDE_CODE}(?={_HIDE_PART}*\d){_HIDE_PART}{{8,}}",
    ),
    _hide_rule(
        rf"(?:\b|_|(?<=\\[ntr]))(?:pass|pwd)\\*['\"]?\]?{_HIDE_GIVEN}\\*['\"]?",
        rf"(?![a-z]+(?:_[a-z0-9]+)+\b|[~/.]){_HIDE_MIXED}{_HIDE_PART}{{6,}}",
    ),
    (
        re.compile(
            rf"((?:\b[A-Z0-9_]*_(?:PASS|PWD|PW|TOKEN)=|\b(?:export|setenv|set -x) [A-Z0-9_]+_KEY[= ])['\"]?)"
            rf"(?![~/$\[<]){_HIDE_PART}{{3,}}"
        ),
        rf"\1{HIDDEN_SECRET}",
    ),
    _hide_rule(r"\bpw=", rf"(?![~/.$]){_HIDE_CODE}{_HIDE_PART}{{6,}}"),
    _hide_rule(r";\s*(?:pwd|password)=", r"[^;'\"\n]+"),
    # Alone on its line, as documents of settings have it.
    _hide_rule(
        r"(?m:^|(?<=\\n)|(?<=['\"]))[ \t-]*"
        r"(?:(?:token|auth|jwt|pat)[ \t]*(?::|=[ \t]*\\*['\"])|(?:pass|pwd|pw)[ \t]*[=:])[ \t]*",
        rf"{_HIDE_TYPE}{_HIDE_CODE}(?![a-z]+(?:_[a-z0-9]+)+\b|(?-i:[A-Z])|[~/.<])"
        rf"[^\s'\"\\(\[{{,;<]{{6,}}(?=[ \t]*(?:(?m:$)|[\\'\"]))",
    ),
    _hide_rule(
        r"(?:\btoken\s+\\*['\"]|\b(?:for|with|using|use|user|wrong|bad|invalid|expired|revoked)\s+(?:\w+\s+)?token\s+)",
        rf"{_HIDE_MIXED}[\w-]{{8,}}",
    ),
    _hide_rule(
        r"\bX-(?:Amz|Goog)-(?:Signature|Security-Token|Credential)['\"]?\s*[=:]\s*['\"]?", rf"{_HIDE_PART}+"
    ),
    _hide_rule(
        r"[?&;#](?:[\w-]*(?:sig|signature|token|secret|password|auth|passwd|pwd|api-?key)|key|sid|session)=",
        r"[^\s&'\"\\<>]{6,}",
    ),
    _hide_rule(r"\bjdbc:[\w:]+:\w+/", r"[^\s@'\"]+(?=@)"),
    # Headers.
    _hide_rule(r"\bAuthorization\s*[:=]\s*(?:Digest|AWS4-\S+)\s", r"[^\n]+"),
    _hide_rule(
        r"\b(?:Proxy-)?Authorization\\*['\"]?\]?\s*[:=]\s*\\*['\"]?(?:[A-Za-z]+\s+)?",
        rf"{_HIDE_CODE}" + r"(?![A-Za-z]+\s+<)[^\s'\"\\,;<>]{6,}",
    ),
    _hide_rule(r"\b(?:Set-)?Cookie\\*['\"]?\s*[:=]\s*\\*['\"]?", r"(?=[\w.-]+=)[^\n'\"\\]+"),
    _hide_rule(r"\b(?:Bearer|Basic)\s+", r"(?:(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{20,})"),
    # Tokens known by their shape.
    (
        re.compile(
            r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
            r"|sk-(?=[\w-]*\d)[\w-]{16,}|xox[a-z]-(?=[\w-]*\d)[\w-]{8,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
            r"|AIza[\w-]{20,}|eyJ[\w-]{10,}\.[\w.-]+|eyJ[\w-]{40,}|ya29\.[\w-]{20,}|[sr]k_(?:live|test)_[A-Za-z0-9]{10,}|npm_[A-Za-z0-9]{20,}"
            r"|pypi-[\w-]{16,}|nvapi-[\w-]{16,}"
            # Of most services since: a short prefix, perhaps its kind, and what was drawn.
            r"|(?:gsk|r8|wandb_v1|tgp_v1|lsv2_(?:pt|sk)|pcsk|dckr_pat|ntn|figd|rpa|KGAT|sbp|whsec|squ|sqp|sqa|nfp|bkua|glc|napi|fm[12]"
            r"|pscale_\w+|y0|t1|HRKU|CCIPAT|ops|pnu|sgp|shp\w\w|vcp|cfut|sntrys|dop_v1)[_-](?=[\w-]*\d)[\w-]{16,}"
            r"|(?:xai|tskey|fw|pplx|AKCp|glrt|csk|ak|as|tk|dp)[_.-](?:[a-z]{2,8}[_.-])?(?=[A-Za-z-]*\d)[A-Za-z0-9-]{20,})"
        ),
        HIDDEN_SECRET,
    ),
    _hide_rule(r"(?:\bhooks\.[\w.]+/\w+|/webhooks?)/", r"[\w/+-]{16,}"),
    _hide_rule(
        r"\b(?:wandb|heroku|lightning|api[ _-]?key|token)\b[^\w\n]{1,4}(?:(?:key|login)[^\w\n]{1,4})?",
        r"(?:[0-9a-f]{32,40}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})\b",
    ),
    _hide_rule(r"\"(?:k|d|p|q|dp|dq|qi)\"\s*:\s*\"", r"[\w-]{43,}"),  # of a key as JSON
]
_HIDE_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY(?:(?!-----END)[^<])*(?:-----END [A-Z ]*-----)?")
# Arguments of what is called to log in, or to wrap a secret.
_HIDE_CALL = re.compile(
    rf"(?i)(?:{_HIDE_STRONG}s?\\*['\"]?\]?\s*(?:=\s*"
    r"(?!\w*\.?(?:get|load|read|input|environ|prompt|config|cfg|args))(?:\w+\.)*\w*|:\s*)[\[({]"
    r"|(?<!def )\b\w*(?:basicauth|digestauth|secretstr|secretbytes|set_?"
    r"(?:password|secret|token|api_?key)|\blogin|authenticate)\("
    r"|\bauth\s*=\s*\()[^()\[\]{}]{0,400}[)\]}]"
)
_HIDE_ARGUMENT = re.compile(r"(?<![\w.\\])([rbu]?)(\\*['\"])((?:(?!\2).)*)\2")
# One of these is in every line in which a rule above finds something, or in one of the two before it. Most lines hold
# none, which is seen quickly.
_HIDE_WORDS = re.compile(
    r"pass|pwd|pw|psk|wort|wacht|contrase|has\u0142|salas|l\u00f6sen|senha|\u015fifre|cred|\u5bc6|\ube44|\\u[0-9a-f]{4}|parol|пароль|密码|パス|secret|key|token|auth|cookie|sig|session|sid=|"
    r"otp|pin|2fa|mnemonic|kty|heroku|lightning|phrase|connection|://|login|curl|http|smbclient|redis|zip|7z|echo|"
    r"mysql|jdbc|bearer|basic|hf_|ghp_|gho_|ghu_|ghs_|ghr_|github|glpat|sk-|sk_|rk_|xox|akia|asia|aiza|eyj|npm_|"
    r"pypi-|nvapi|gsk|r8_|_v1|lsv2|pcsk|dckr|ntn_|figd|rpa_|kgat|sbp_|whsec|squ_|sqp_|sqa_|nfp_|bkua|glc_|napi|"
    r"fm1_|fm2_|pscale|y0_|t1_|hrku|ccipat|ops_|pnu_|sgp_|shp|ya29|vcp_|cfut|sntrys|xai-|tskey|fw_|pplx|akcp|glrt|"
    r"csk-|ak-|as-|tk-|tk_|dp\.|slack|discord|bot|wandb|-----|-[pw]\b|sqlplus|:\d{4,5}:|log in|logged in",
    re.IGNORECASE,
)
_HIDE_RUN = re.compile(r"(?<![\w/+=.~-])[\w/+-]{20,600}={0,2}(?![\w/+])")


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
    text = _HIDE_KEY_BLOCK.sub(HIDDEN_SECRET, text)
    done, parts = 0, []
    for start, end in _hide_windows(text):
        parts += [text[done:start], _hide_given(text[start:end])]
        done = end
    return _HIDE_RUN.sub(_hide_random, "".join([*parts, text[done:]]))


def _hide_windows(text: str) -> list[tuple[int, int]]:
    """The lines that rules have to look at: those with one of their words, each with the two after it."""
    found: list[tuple[int, int]] = []
    line_end = 0
    while match := _HIDE_WORDS.search(text, line_end):
        start = text.rfind("\n", 0, match.start()) + 1
        ends = [match.end()]
        for _ in range(3):
            ends.append(text.find("\n", ends[-1]) + 1 or len(text))
        line_end = ends[1]
        if found and found[-1][1] >= start:
            start = found.pop()[0]
        found.append((start, ends[-1]))
        if line_end == len(text):
            break
    return found


def _hide_given(text: str) -> str:
    for pattern, replacement in _HIDE_REWRITES:
        text = pattern.sub(replacement, text)
    return _HIDE_CALL.sub(lambda call: _HIDE_ARGUMENT.sub(_hide_argument, call[0]), text)


def _hide_argument(given: re.Match[str]) -> str:
    return f"{given[1]}{given[2]}{HIDDEN_SECRET}{given[2]}" if given[3] else given[0]


def _hide_random(run: re.Match[str]) -> str:
    """Nothing that people or compilers name goes up and down between small, large and digits so often.

    Numbers that a script reads from its own text stand in a call that says so, or are longer than a token.
    """
    text, before = run[0], run.string[max(0, run.start() - 12) : run.start()]
    if "b64decode(" in before or "base64," in before or text.startswith("sha256-"):
        return text
    # Of 40 characters are keys that have signs anywhere.
    whole = re.sub("[/+]", "", text) if len(text) == 40 else text
    for part in re.findall(r"[A-Za-z0-9]{20,}", whole):
        kinds = ["0" if c.isdigit() else "A" if c.isupper() else "a" for c in part]
        turns = sum(a != b for a, b in pairwise(kinds))
        in_words = sum(map(len, re.findall(r"[a-z]{3,}", part)))
        most = (0.15, 0.15, 0.25, 0.25, 0.4)[min(4, len(re.findall(r"\d+", part)))]
        if (
            len(set(kinds)) == 3
            and turns >= 0.4 * len(part)
            and in_words < most * len(part)
            and "_Z" not in text
        ):
            text = text.replace(part, HIDDEN_SECRET) if text.startswith("/") else HIDDEN_SECRET
    return text


def _hide_encoded(value: str) -> str:
    return base64.b64encode(value.encode("utf-8", "replace")).decode().rstrip("=")


def hide_in_words(words: list[str]) -> list[str]:
    """A command line less its secrets: `hide_in_words(sys.argv)`."""
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
    # As they stand in the text of an error, in a document, in a URL and in a header.
    found |= {shown(value)[1:-1] for value in found for shown in (repr, json.dumps)} | {
        shown(value) for value in found if len(value) >= 12 for shown in (quote, quote_plus, _hide_encoded)
    }
    return tuple(sorted(found - {HIDDEN_SECRET, ""}, key=len, reverse=True))
