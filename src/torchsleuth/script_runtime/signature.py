"""What a failure *is*, apart from the numbers and names it happened to carry.

A `Signature` keeps kind, phase, exception chain, normalised root message and innermost compiler frames
(or signal, or diverging outputs).  The one idea: normalise until only what the bug itself wrote is left,
then compare one key, so that default sameness is an equivalence relation.  This file's text is pasted
into standalone repro scripts: standard library only.
"""

import dataclasses
import hashlib
import json
import os
import re
import traceback

from torchsleuth.script_runtime.hiding import HIDDEN_SECRET, hide_secrets

# These exceptions only carry another one: the same bug is seen with and without them.
_SIG_CARRIERS = {"BackendCompilerFailed", "InductorError", "LoweringException", "TorchRuntimeError"}
_SIG_CARRIERS |= {"SubgraphLoweringException", "SubprocException", "ProcessRaisedException"}
_SIG_MUTE = {"CalledProcessError", "_RemoteTraceback", "RemoteTraceback"}  # say less than what they caused
# Errors whose text says next to nothing about the bug: the place must speak as well.
_SIG_VAGUE_TYPES = {"KeyError", "IndexError", "StopIteration", "ZeroDivisionError"}
_SIG_VAGUE_TEXT = re.compile(r"NoneType|out of range|^(unhandled|unknown|internal|invalid) (error|argument)")
_SIG_GENERATED = re.compile(r"<[^>]*>|\.py:|(?:^|[/\\])c[a-z2-7]{51}\.py$|[/\\]torchinductor_[^/\\]+[/\\]")
_SIG_PACKAGED = re.compile(r".*(?:site|dist)-packages/(.+)|.*?/((?:torch/(?:_|fx|nn|ops|util)|triton/).+)")
_SIG_OURS = re.compile(
    r"[/\\]torchsleuth[/\\](?!backends|examples|tests|docs|benchmarks)[a-z_]+[/\\]|[/\\]torchsleuth_runtime\.py$|^<frozen"
)
_SIG_REMOTE = "Traceback (most recent call last):"
_SIG_TAILS = re.compile(
    r"\n[ \t]*(?:While executing %|Original traceback:|from user code:|Found from |target: |Hint: |Command:"
    r"|Developer debug context:|For more details about|Exception raised from|C\+\+ Captured|Set TORCH|graph\("
    r"|You can suppress this exception|The above exception|def forward|class \w+\(|CUDA kernel errors"
    r"|Search for |For debugging consider|Compile with )|(?<=\S)[ ]+GPU \d+ has a total capacity"
)
_SIG_COMPILER = re.compile(r"C\+\+ compile error|ptxas|nvcc|\bg\+\+|clang|\.(?:cpp|cc|cu|cxx|h|hpp)[:(]\d+")
_SIG_COMPILER_ERROR = re.compile(
    r"(?m)(undefined (?:reference to|symbol:?) [^\n]*)"
    r"|^[^\n]*?(?:\berror[ \t]*(?:[A-Z]+\d+)?[ \t]*:|\bfatal[ \t]*:)[ \t]*(?!ld returned)(\S[^\n]*)$"
)
_SIG_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|\r")
_SIG_FILE = r"\.(?:py|cpp|cc|cu|h|hpp|so|o|ptx|json)\b"
_SIG_LIST = r"\s*(?:#\.?|\[#\])(?:\s*,\s*(?:#\.?|\[#\]))*\s*,?\s*"
_SIG_REWRITES = [
    (r"\b(?:https?|file|ftp)://[^\s'<>]+", "<url>"),
    (r"'(?:[A-Za-z]:[\\/]|[\\/]|~/|\.{1,2}[\\/])[^'\n]*'", "'<path>'"),
    (r"(?<!\w)[A-Za-z]:[\\/]+[^\s'\",;:()<>|\[\]]+|(?<![\\\w])\\\\[\w.$-]+\\[^\s'\",;:()]+", "<path>"),
    (r"(?<![\w)\]}>.#/])(?:~|\.{1,2})?/(?:[\w.+@~=-]+/)*[\w.+@~=-]+/?", "<path>"),
    (r"(?<![\w/.])(?:[\w.+-]+[\\/])+[\w.+-]+" + _SIG_FILE, "<path>"),
    (r"(?<![\w/.])[\w-]+(?:\.[\w-]+)*" + _SIG_FILE + r"(?=:\d|\(\d|, line \d)", "<path>"),
    (r"<path>(?:(?::\d+)+|\(\d+(?:,\d+)?\)|'?, line \d+)", "<path>"),
    (r" at 0x[0-9a-fA-F]+|, index=\d+|(?<=<eval_with_key>)\.\d+", ""),
    (r"\b(?:c[a-z2-7]{51}|[0-9a-f]{32,})\b", "<hash>"),
    (r"\b(?:(?:triton|cpp|mps|cut\w+?)_(?:[a-z]+_)?fused_|triton_(?:poi|red|per|tem|b?mm))\w*", "<kernel>"),
    (r"\b(?:buf|arg|primals|tangents|in_out_ptr|in_ptr|out_ptr|ptr|tmp|op)_?\d+(?:_\d+)*\b", "<name>"),
    (r"\b[lL]_\w+_\b|\b[xyzr]\d*_?(?:index|offset|numel|mask|base)\b", "<name>"),
    (r"\b(?!i(?:1|8|16|32|64)\b)(?:zuf|zf|ks|ps|[suixyzr])\d+(?:_\d+)*\b", "#"),
    (r"\b(cuda|cpu|xpu|hpu|mps|npu|mtia|meta|hip):\d+|\b([A-Za-z_]\w*?)(?:_\d+)+\b", r"\1\2"),
    (r"\b0x[0-9a-fA-F]+\b|\b\d+(?:x\d+)+\b", "#"),
    (r"(?<![\w.])[-+]?\d[\d_]*(?:\.\d+)*(?:[eE][-+]?\d+)?(?=(?:[KMGTP]i?B|B|[mun]?s|x|j|L)?(?!\w))", "#"),
]
# Applied until nothing changes: sums, products and lists of numbers nest.
_SIG_FOLDS = [
    (r"#(?:\s*(?:\*\*|//|[-+*/%])\s*#)+|(?<!\w)\(#\)|(?<!\w)-#|#(?:\s*,\s*#)+", "#"),
    (r"\b(?:Max|Min|\w*Mod|ModularIndexing|\w+Div|TrueToInt|floor|ceiling)\(" + _SIG_LIST + r"\)", "#"),
    (r"\[(?:\s*|" + _SIG_LIST + r")\]|(?<![\w.])\((?:\s*|" + _SIG_LIST + r")\)", "[#]"),
    (r"(?<=\w)\(" + _SIG_LIST + r"\)", "(#)"),
    (r"([^\s,\[\](){}][^,\[\](){}]{0,60})(?:, \1)+(?=[\])}])", r"\1"),
]


@dataclasses.dataclass(frozen=True)
class Signature:
    """How something failed.  Example: `Signature("crash", "compile", signal="SIGSEGV").summary`."""

    kind: str
    phase: str
    exceptions: tuple[str, ...] = ()
    message: str = ""
    frames: tuple[str, ...] = ()
    signal: str | None = None
    outputs: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """One line that a person understands, e.g. `SIGSEGV while compiling`."""
        phases = {"capture": "capturing a graph", "run": "running a compiled graph"}
        phases["eager"] = "running without the compiler"
        doing = phases.get(self.phase, "compiling")
        if self.kind in ("crash", "hang"):
            return f"{self.signal or self.kind} while {doing}"
        if self.kind == "accuracy":
            rest = [f"and {len(self.outputs) - 3} more"] if len(self.outputs) > 4 else self.outputs[3:]
            return ("wrong result: " + (", ".join([*self.outputs[:3], *rest]) or "outputs"))[:160]
        names = [_sig_short(name) for name in self.exceptions[-2:]] or ["error"]
        names = names[0 if names[0] in _SIG_CARRIERS else -1 :] + [self.message] * bool(self.message)
        return ": ".join(names)[:160]

    def to_json(self) -> dict[str, object]:
        """A JSON-able dict, `summary` included; `signature_from_json` reads it back."""
        return {"summary": self.summary, **dataclasses.asdict(self)}


def signature_from_json(doc: dict) -> Signature:
    """The signature written by `to_json`; unknown keys are ignored, wrong types raise `TypeError`."""
    known = {f.name: doc[f.name] for f in dataclasses.fields(Signature) if f.name in doc}
    for name, value in known.items():
        several = name in ("exceptions", "frames", "outputs")
        if several and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            known[name] = tuple(value)
        elif several or not (isinstance(value, str) or (name == "signal" and value is None)):
            raise TypeError(f"signature.{name} is not made of text")
    return Signature(**known)


def normalise_message(text: str) -> str:
    """The text less what changes from run to run: `size 3 of buf7` becomes `size # of <name>`."""
    text = re.sub('[\u2018\u2019\u201c\u201d"`]', "'", _SIG_ANSI.sub("", text[:200_000]))
    text = hide_secrets(_sig_head(text)[:2000])
    for pattern, replacement in _SIG_REWRITES:
        text = re.sub(pattern, replacement, text)
    before = ""
    while before != text:
        before = text
        for pattern, replacement in _SIG_FOLDS:
            text = re.sub(pattern, replacement, text)
    return " ".join(text.split())[:300].rstrip()  # what is longer is a dump of a graph


def _sig_head(text: str) -> str:
    """The line or two that carry the meaning of a long message."""
    if _SIG_REMOTE in text:
        text = _sig_remote(text)[1]
    if _SIG_COMPILER.search(text) and (found := _SIG_COMPILER_ERROR.search(text)):
        return re.sub(r"[;,] did you mean .*|\s*\[-W[\w=+-]+\]$", "", found[1] or found[2])
    if re.match(r"\s*at \d+:\d+:", text):  # Triton prints its source first and the error last
        return text.strip().splitlines()[-1]
    kept = _SIG_TAILS.split("\n" + text, maxsplit=1)[0]
    lines = [line.strip() for line in kept.splitlines() if line.strip()] or [""]
    wants_more = len(lines[0]) < 40 or lines[0].endswith(":") or "Explanation:" in "".join(lines[1:2])
    return " ".join(lines[: 2 if wants_more else 1])


def _sig_remote(text: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Type, message and frames of a traceback that came as text from another process."""
    block = text.rpartition(_SIG_REMOTE)[2].strip("\n")
    frames = re.findall(r"^ +File [\"']([^\"'\n]+)[\"'], line \d+, in (\S+)", block, re.MULTILINE)
    last = re.search(r"\A(?:[ ].*\n|\n)*([A-Za-z_][\w.]*)(?::[ ]?([\s\S]*))?\Z", block)
    return (last[1], last[2] or "", frames) if last else ("", block, frames)


def _sig_text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # a broken __str__ must not hide the failure it belongs to
        return ""


def _sig_next(exc: BaseException) -> BaseException | None:
    """The exception that this one wraps, or None where it is the root cause."""
    for inner in (getattr(exc, "inner_exception", None), exc.__cause__):
        if isinstance(inner, BaseException) and type(inner).__name__ not in _SIG_MUTE:
            return inner
    context = exc.__context__
    # Whatever happened to be handled is a context as well; it is the cause only where it is quoted.
    quoted = (_sig_text(context).strip() or type(context).__name__) in _sig_text(exc) if context else False
    return context if quoted and type(context).__name__ not in _SIG_MUTE else None


def signature_of_exception(exc: BaseException, kind: str, phase: str) -> Signature:
    """The signature of a caught exception: `signature_of_exception(e, "compile_error", "compile")`."""
    chain = [exc]
    while (inner := _sig_next(chain[-1])) is not None and all(inner is not e for e in chain):
        chain.append(inner)
    types = [(type(e).__module__, type(e).__qualname__) for e in chain]
    names = [name if module == "builtins" else f"{module}.{name}" for module, name in types]
    codes = [[frame.f_code for frame, _ in traceback.walk_tb(e.__traceback__)] for e in chain]
    stacks = [[(code.co_filename, code.co_name) for code in each] for each in codes]
    text = _sig_text(chain[-1])
    if "_dynamo.exc.Observed" in names[-1]:  # the program's own error, whose frames torch cuts off
        text, stacks = text or _sig_text(chain[-2:][0]), stacks[:-1]
    innermost = next((s[-1] for s in reversed(stacks) if s), None)
    stack = max((s for s in stacks if s and s[-1] == innermost), key=len, default=[])
    while _sig_short(names[-1]) in _SIG_CARRIERS:  # what it carried is only in its text
        if _SIG_REMOTE in text:
            name, text, remote = _sig_remote(text)
            stack = remote or stack
        else:
            found = re.match(r"(?s)(?:backend=[^\n]* raised:)?\s*([A-Za-z_][\w.]*):(?:\s(.*)|\Z)", text)
            name, text = (found[1], found[2] or "") if found else ("", text)
        if not name:
            break
        names.append(name)
    message = "maximum recursion depth exceeded" if names[-1] == "RecursionError" else normalise_message(text)
    return Signature(kind, phase, tuple(names), message, _sig_frames(stack))


def _sig_frames(stack: list[tuple[str, str]]) -> tuple[str, ...]:
    """The five innermost frames at or below the compiler's first; the program around it is left out."""
    named: list[tuple[bool, str]] = []
    for filename, function in stack:
        packaged = _SIG_PACKAGED.fullmatch(filename.replace("\\", "/"))
        if _SIG_OURS.search(filename):
            continue
        if _SIG_GENERATED.search(filename):
            named.append((True, f"<generated>:{function}"))
        elif packaged:
            named.append((True, f"{packaged[1] or packaged[2]}:{function}"))
        elif not filename.startswith(os.path.dirname(os.__file__) + os.sep):
            named.append((False, f"{os.path.basename(filename)}:{function}"))
    first = next((i for i, (inside, _) in enumerate(named) if inside), 0)
    return tuple(name for _, name in named[first:][::-1][:5])


def _sig_place(sig: Signature) -> str:
    """The innermost frame; of a user's file, which has another name in a repro, only the function."""
    frame = "".join(sig.frames[:1])
    return frame if "/" in frame or frame.startswith("<") else frame.rpartition(":")[2]


def _sig_short(name: str) -> str:
    return name.rpartition(".")[2]


def _sig_key(sig: Signature) -> tuple[str, ...]:
    """Two failures are the same by default when these are equal."""
    if sig.kind in ("crash", "hang", "accuracy"):
        return (sig.kind, sig.phase, (sig.signal or "") if sig.kind == "crash" else "")
    root = _sig_short("".join(sig.exceptions[-1:]))
    letters = re.findall(r"[A-Za-z]", re.sub(r"<\w+>", "", sig.message))
    vague = root in _SIG_VAGUE_TYPES or len(letters) < 10 or _SIG_VAGUE_TEXT.search(sig.message)
    return (sig.kind, sig.phase, root, sig.message, _sig_place(sig) if vague else "")


def fails_the_same_way(a: Signature, b: Signature) -> bool:
    """Whether two failures are one bug: `fails_the_same_way(seen, wanted)`; outputs play no part."""
    one, two = _sig_key(a), _sig_key(b)
    return one == two or (one[:3] == two[:3] and (_sig_fits(a, b) or _sig_fits(b, a)))


def _sig_fits(hidden: Signature, shown: Signature) -> bool:
    """Whether the message of one is the other's, but for secrets: a case hides more kinds of them than a script can."""
    *parts, last = hidden.message.split(HIDDEN_SECRET)
    if not parts or len(re.findall(r"[A-Za-z]", "".join([*parts, last]))) < 10:
        return False
    end = re.escape(last) if len(shown.message) < 290 else re.escape(last[:20]) + ".*"  # a long one was cut
    return re.fullmatch(r"\S+".join([*map(re.escape, parts), end]), shown.message) is not None


def fingerprint(sig: Signature) -> str:
    """A stable hex key: equal exactly for signatures that fail the same way."""
    return hashlib.sha256(json.dumps(_sig_key(sig)).encode()).hexdigest()[:16]
