"""Runs one recorded graph the way it failed and says what came of it.

The text of this file is pasted into every written script: torch and the standard library only.
A script answers in its last line and its exit status: REPRODUCED 1, NOT REPRODUCED 0, DIFFERENT FAILURE 2,
CANNOT TELL 3; a crash ends the process as the bug does. What cannot be set up is never taken for a failure.
"""

import argparse
import base64
import contextlib
import copy
import importlib.util
import os
import re
import subprocess
import sys
import traceback
import zlib

import torch

from torchsleuth.script_runtime.compiling import (
    apply_settings,
    aten_compiler,
    captured_compiler,
    draw_eager_random_numbers,
    lazy_backward,
    with_reshapes,
)
from torchsleuth.script_runtime.inputs import load_inputs
from torchsleuth.script_runtime.reader import read_graph
from torchsleuth.script_runtime.signature import (
    Signature,
    fails_the_same_way,
    signature_from_json,
    signature_of_exception,
)
from torchsleuth.script_runtime.symbolic_inputs import symbolic_inputs

_REPRO_VERBS = ["run", "get_args", "verify", "analyze", "minify"]


class CannotTell(Exception):
    """This machine lacks what the script needs; says what."""


def repro_main(facts, expected, source, namespace):
    """The script's main program: `facts` and `expected` stand at its top, `source` is its own text."""
    parser = argparse.ArgumentParser(description=namespace.get("__doc__") or "", allow_abbrev=False)
    parser.add_argument("verb", nargs="?", default="run", choices=_REPRO_VERBS)
    parser.add_argument("--eager", action="store_true", help="run the graph without compiling it")
    parser.add_argument("--backend", help="compile with this backend instead")
    parser.add_argument("--accuracy", choices=["on", "off", "strict"], help="compare the result with eager")
    parser.add_argument("--tracing-mode", choices=["real", "fake", "symbolic"], help="default: as recorded")
    parser.add_argument("--check-str", help="regular expression the error must contain")
    parser.add_argument("--save-dir", help="folder with the kept tensors (default: inputs beside the script)")
    asked = dict(facts.get("asked", {}))
    if "save_dir" in asked:
        asked["save_dir"] = os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), asked["save_dir"])
    parser.set_defaults(**asked)
    options = parser.parse_args()
    if options.verb in ("verify", "analyze", "minify"):
        sys.exit(_repro_ask(options.verb))
    wanted = None if expected is None else signature_from_json(expected)
    sys.exit(_repro_answer(facts, wanted, source, namespace, options))


def _repro_ask(verb):
    if importlib.util.find_spec("torchsleuth") is None:
        print(f"CANNOT TELL: `{verb}` needs torchsleuth: pip install torchsleuth")
        return 3
    return subprocess.call([sys.executable, "-m", "torchsleuth", verb, os.path.abspath(sys.argv[0])])


def _repro_answer(facts, expected, source, namespace, options):
    try:
        trial = ReproTrial(facts, _repro_graph_source(source), namespace, options)
    except CannotTell as why:
        print(f"CANNOT TELL: {why}")
        return 3
    if options.verb == "get_args":
        for name, value in zip(facts["placeholders"], trial.inputs()):
            print(name, _repro_describe(value))
        return 0
    if options.eager:
        return _repro_eager(trial)
    # As torch.compile does: without the compiler under this variable.
    disabled = os.environ.get("TORCH_COMPILE_DISABLE") == "1"
    observed = trial.observe_eager([]) if disabled else trial.observe()
    if observed is None:
        print("NOT REPRODUCED")
        return 0
    signature, text = observed
    sys.stderr.write(text)
    sys.stderr.flush()
    same = expected is None or fails_the_same_way(expected, signature)
    if options.check_str:
        same = re.search(options.check_str, text) is not None
    print(f"{'REPRODUCED' if same else 'DIFFERENT FAILURE'}: {signature.summary}")
    return 1 if same else 2


def _repro_eager(trial):
    """Runs the graph node by node without compiling it, so that a failure can be put to one of them."""
    at = ["?"]
    observed = trial.observe_eager(at)
    print("EAGER PASSES" if observed is None else f"EAGER FAILS: {at[-1]} | {observed[0].summary}")
    return int(observed is not None)


def _repro_graph_source(source):
    """The classes of the graph, without the rest of the script."""
    parts = re.split(r"(?m)^# -{20,} (?:the graph|how it was compiled.*)\n", source)
    if len(parts) < 2:
        raise CannotTell("the heading above the graph is gone from this script")
    return parts[1]


def _repro_describe(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} stride {list(value.stride())} on {value.device}"
    return repr(value)


def _repro_parted(described):
    """The inputs each on memory of its own, as in the call that the graph was compiled for."""
    alone = {"alias_of": None, "same_as": None}
    return {
        **described,
        "inputs": [{**each, **alone} if "alias_of" in each else each for each in described["inputs"]],
    }


def _repro_wait():
    """Waits for what was launched: an accelerator says late that it failed."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _repro_phase(name):
    """A mark on stderr, so that whoever watches knows in which phase a crash or hang came."""
    sys.stderr.write(f"torchsleuth: {name}\n")
    sys.stderr.flush()


class ReproTrial:
    """Graph, inputs and settings of one script, ready to be compiled and run."""

    def __init__(self, facts, graph, namespace, options):
        self.facts = facts
        self.options = options
        self.namespace = namespace
        self.check = facts["kind"] == "accuracy" if options.accuracy is None else options.accuracy != "off"
        folder = options.save_dir or os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "inputs")
        self.folder = folder if os.path.isdir(folder) else None
        kept = any(each.get("storage") for each in facts["inputs"]["inputs"])
        if kept and self.folder is None and options.save_dir:
            raise CannotTell(f"the values of the inputs were kept in {folder}, which is not there")
        if kept and self.folder is None:
            sys.stderr.write(f"torchsleuth: {folder} is not there: the values of the inputs are made up\n")
        if "cuda" in str(facts["inputs"]) and not torch.cuda.is_available():
            raise CannotTell("the failure was seen on a CUDA device and there is none here")
        try:
            apply_settings(facts["config"], facts["state"], namespace)
            if self.check:
                draw_eager_random_numbers()
            namespace["constant"] = self._constants().__getitem__
            self.graph = read_graph(graph, "Repro", namespace)
            self.eager = with_reshapes(self.graph) if facts["level"] == "aot" else self.graph
            self.inputs()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise CannotTell(f"could not set up the graph and its inputs here ({why})") from error

    def _constants(self):
        kept = self.facts.get("constants")
        return dict(zip(kept["names"], load_inputs(kept["description"], self.folder))) if kept else {}

    def inputs(self):
        """The inputs, made anew each time, because a run may change them."""
        return load_inputs(self.facts["inputs"], self.folder)

    @contextlib.contextmanager
    def ambient(self):
        """Grad mode and autocast as they were; an aten graph has gradients and casts written out."""
        state = self.facts["state"]
        captured = self.facts["level"] == "dynamo"
        with contextlib.ExitStack() as stack:
            if state["inference_mode"]:
                stack.enter_context(torch.inference_mode())
            stack.enter_context(torch.set_grad_enabled(state["grad"] and captured))
            for kind, dtype in state["autocast"].items() if captured else ():
                stack.enter_context(torch.autocast(kind, dtype=getattr(torch, dtype.removeprefix("torch."))))
            torch.manual_seed(0)
            if state.get("rng"):
                kept = bytearray(zlib.decompress(base64.b64decode(state["rng"])))
                torch.set_rng_state(torch.frombuffer(kept, dtype=torch.uint8))
            yield

    def run_eager(self, values):
        with self.ambient():
            out = self.eager(*values)
            self.differentiate(out)
        return out

    def differentiate(self, out):
        """Runs the backward of a Dynamo-level graph, for the same random gradients of its outputs each time."""
        outputs = out if isinstance(out, (list, tuple)) else [out]
        outputs = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        if outputs and self.facts["level"] == "dynamo" and not self.facts.get("forward_only"):
            generator = torch.Generator("cpu").manual_seed(0)
            made = [torch.randn(o.shape, generator=generator, device="cpu") for o in outputs]
            given = [torch.empty_like(o).copy_(numbers) for o, numbers in zip(outputs, made)]
            torch.autograd.backward(outputs, given)

    def gradients(self, values):
        """The gradients that a backward left in its inputs, where they are part of what is compared."""
        if not self.facts.get("gradients"):
            return []
        return [v.grad for v in values if isinstance(v, torch.Tensor) and v.requires_grad]

    def prepare(self):
        """What compiles the graph at the level it failed at."""
        facts = self.facts
        described = _repro_parted(facts["inputs"]) if facts.get("parted") else facts["inputs"]
        values = load_inputs(described, self.folder)
        if self.options.tracing_mode in ("real", "fake"):
            described = {**described, "symbols": {}}
        if facts["level"] == "aot" and not self.options.backend:
            fakes, mode = symbolic_inputs(described, values)
            compiler = self.namespace.get("backend")
            return aten_compiler(
                self.graph, fakes, mode, facts["output_meta"], facts["compile_kwargs"], compiler
            )
        examples = symbolic_inputs(described, values)[0] if described.get("symbols") else values
        backend = self.options.backend or self.namespace.get("backend") or facts["backend"]
        options = {key: eval(text, dict(self.namespace)) for key, text in facts["options"].items()}
        # A compiler may change the graph it is given, and this one is also what eager runs.
        return captured_compiler(copy.deepcopy(self.graph), examples, backend, options)

    def observe_eager(self, names):
        """Runs the graph node by node without a compiler, each node's name added to `names` before it runs."""

        class Steps(torch.fx.Interpreter):
            def run_node(self, node):
                names.append(node.name)
                result = super().run_node(node)
                _repro_wait()  # what a kernel does wrong shows at a later call
                return result

        try:
            with self.ambient():
                self.differentiate(Steps(self.eager).run(*self.inputs()))
        except Exception as error:
            return signature_of_exception(error, "runtime_error", "run"), traceback.format_exc()
        return None

    def calls_before(self):
        """A CUDA graph warms up at the first call and is recorded at the second: the third is the one that replays."""
        return 2 if self.facts["compile_kwargs"].get("cudagraphs") else 0

    def next_inputs(self, first):
        """Inputs for one more call: weights are the same tensors, which a CUDA graph relies on, the rest is new."""
        static = set(self.facts["compile_kwargs"].get("static_input_idxs") or ())
        return [first[place] if place in static else value for place, value in enumerate(self.inputs())]

    def observe(self):
        """Compiles and runs; (signature, text) of what failed, or None."""
        phase, kind = "compile", "compile_error"
        try:
            compile_it = self.prepare()
            _repro_phase("compiling")
            with self.ambient():
                compiled = compile_it()
            phase, kind = "run", "runtime_error"
            after = self.inputs()
            _repro_phase("running")
            for _ in range(self.calls_before()):
                with self.ambient():
                    compiled(self.next_inputs(after))
            values = list(after)
            with self.ambient():
                out = compiled(values)
                self.differentiate(out)
            _repro_wait()
        except Exception as error:
            lazy = lazy_backward(error)
            if lazy is not None and lazy[0]:
                phase, kind = "compile", "compile_error"
            return signature_of_exception(error, kind, phase), traceback.format_exc()
        return self._compare(out, after) if self.check else None

    def _compare(self, out, after):
        before = self.inputs()
        eager = self.run_eager(before)
        strict = self.options.accuracy == "strict"
        gradients = self.gradients(before), self.gradients(after)
        if self.facts["direction"] == "backward":
            before = after = []  # saved activations: compiled code may reuse their memory
        wrong = wrong_outputs(
            (eager, before, gradients[0]), (out, after, gradients[1]), self.facts.get("tolerances"), strict
        )
        if not wrong:
            return None
        text = "".join(f"{name}: {why}\n" for name, why in wrong)
        return Signature("accuracy", "run", outputs=tuple(name for name, _ in wrong)), text


# Which outputs of a compiled run are wrong, given eager's. Where the recorded verdict measured how far rounding can
# move an output, that distance is the tolerance; else one is derived from the dtype.

# Per dtype: relative to the largest magnitude of the output, what fused and reordered arithmetic may differ by.
_WRONG_RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def wrong_outputs(eager, compiled, tolerances=None, strict=False):
    """(path, sentence) for each leaf of (outputs, inputs after the run, gradients) that is too far from eager's.

    >>> wrong_outputs(([torch.ones(2)], []), ([torch.zeros(2)], []))
    [('outputs[0]', 'differs from eager by up to 1 at [0], 0.001 allowed')]
    """
    found = []
    for label, wanted, got in zip(("outputs", "inputs", "gradients"), eager, compiled):
        for path, a, b in _wrong_pairs(label, wanted, got):
            why = _wrong_leaf(a, b, None if strict else (tolerances or {}).get(path), strict)
            if why:
                found.append((path, why))
    return found


def _wrong_pairs(path, a, b):
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            yield path, len(a), len(b)
            return
        for i, (x, y) in enumerate(zip(a, b)):
            yield from _wrong_pairs(f"{path}[{i}]", x, y)
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from _wrong_pairs(f"{path}[{key!r}]", a[key], b[key])
    else:
        yield path, a, b


def _wrong_leaf(a, b, allowed, strict):
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        same = type(a) is type(b) and (a == b or a != a)
        return (
            None
            if same or isinstance(a, torch.Tensor) == isinstance(b, torch.Tensor)
            else "is another kind of value"
        )
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {b.dtype}{list(b.shape)}, eager's is {a.dtype}{list(a.shape)}"
    if a.numel() == 0:
        return None
    a, b = a.detach(), b.detach()
    if not (a.is_floating_point() or a.is_complex()):
        count = int((a != b).sum())
        return f"differs from eager in {count} of {a.numel()} elements" if count > (allowed or 0) else None
    real = a.dtype if not a.is_complex() else a.real.dtype
    if a.is_floating_point() and a.itemsize == 1:  # numbers of 8 bits know no arithmetic
        a, b = a.float(), b.float()
    if allowed is None:
        finite = a.abs()[torch.isfinite(a)]
        scale = float(finite.max()) if finite.numel() else 0.0
        allowed = 0.0 if strict else _WRONG_RELATIVE.get(real, 0.25) * max(scale, 1e-30)
    wide = torch.complex128 if a.is_complex() else torch.float64
    distance = (a.to(wide) - b.to(wide)).abs()
    # Equal infinities and NaN in the same place are agreement; NaN or infinity in one alone is not.
    agree = (a == b) | (torch.isnan(a) & torch.isnan(b))
    distance = torch.where(agree, torch.zeros_like(distance), torch.nan_to_num(distance, nan=float("inf")))
    worst = int(distance.argmax())
    largest = float(distance.flatten()[worst])
    if largest <= allowed:
        return None
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst, device="cpu"), a.shape)]
    return f"differs from eager by up to {largest:.4g} at {index}, {allowed:.4g} allowed"
