"""Secrets stay on the machine: in every form in which they come, and without damage to what is no secret."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from made import make
from torchsleuth.core.cases.folder import update_case, write_case
from torchsleuth.core.cases.record import CompileSettings, GraphRecord
from torchsleuth.core.cases.scrub import scrubbed
from torchsleuth.script_runtime.hiding import hide_in_words, hide_secrets, secret_values
from torchsleuth.script_runtime.signature import Signature, fails_the_same_way, signature_of_exception
from torchsleuth.torch_core.repro.script import RUNTIME, runtime_text, script_text

SECRET = "hunter2-tr0ub4dor"


@pytest.mark.parametrize(
    "text",
    [
        f"train.py --api-key {SECRET} --epochs 1",
        f"train.py --hub-token={SECRET}",
        f"train.py --db_password {SECRET}",
        f"could not reach postgres://ada:{SECRET}@db.example.com/x",
        f"https://{SECRET}@example.com/simple",
        f'connect(host="h", password="{SECRET}")',
        f"api_key: {SECRET}",
        f'{{"secret": "{SECRET}"}}',
        json.dumps(f'password = "{SECRET}"'),
        f"GET /x?access_key={SECRET}&page=2",
        f"Authorization: Bearer {SECRET}.{SECRET}",
        f"token={SECRET}",
        "hf_abcDEF0123456789abcDEF0123456789ab",
        "ghp_0123456789abcdefABCDEF0123456789abcd",
        "sk-proj-0123456789abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2+x\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_is_taken_out_of_text(text: str) -> None:
    hidden = hide_secrets(text, ())
    for part in (SECRET, "hf_abc", "ghp_0", "sk-proj", "AKIA", "eyJ", "MIIE"):
        assert part not in hidden
    assert "<hidden>" in hidden
    assert hide_secrets(hidden, ()) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "unexpected token: ')'",
        "error: expected ';' before '}' token",
        "hf_Bert_large and hf_GPT2_medium",
        "--tokenizer gpt2 --max-tokens 512 --tokens 3",
        "KeyError: 'key'",
        "the key is 12345 and token 3 of 7 is wrong",
        "torch._inductor.exc.InductorError: LoweringException: AssertionError: ",
        'File "/opt/x/site-packages/torch/_inductor/lowering.py", line 12, in author_of',
        "scikit-learn-models-2 sk-learn",
        "user@example.com wrote https://example.com/a@b",
        "Basic optimisation of the graph",
        "x: Tensor = secrets.token_hex()",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hide_secrets(text, ()) == text


def test_the_value_of_a_secret_variable_or_option_is_taken_out_wherever_it_occurs(monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("SOME_TOKEN", "true")
    monkeypatch.setenv("DATABASE_URL", "postgres://ada:c0rrecthorse@h/x")
    assert (
        hide_secrets(f"the server said no to {SECRET}! c0rrecthorse")
        == "the server said no to <hidden>! <hidden>"
    )
    assert hide_secrets("it is true, or false") == "it is true, or false"
    assert secret_values({}, ["train.py", "--token", "abcd", "--secret=efgh", "x"]) in (
        ("abcd", "efgh"),
        ("efgh", "abcd"),
    )


def test_a_command_line_keeps_its_shape() -> None:
    words = ["python", "train.py", "--api-key", "k3y", "--lr", "0.1", "--token=t0k", "sent k3y"]
    assert hide_in_words(words) == [
        *("python", "train.py", "--api-key", "<hidden>", "--lr", "0.1", "--token=<hidden>", "sent <hidden>"),
    ]


def test_a_signature_matches_with_and_without_the_secret(monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)

    def failed(text: str) -> Signature:
        try:
            raise RuntimeError(text)
        except RuntimeError as error:
            return signature_of_exception(error, "compile_error", "compile")

    here = failed(f"upload with {SECRET} to redis://me:{SECRET}@h refused by the cache")
    monkeypatch.delenv("WANDB_API_KEY")
    there = failed("upload with <hidden> to redis://<hidden>@h refused by the cache")
    assert SECRET not in here.message
    assert fails_the_same_way(here, there)


PROGRAM = f'''
"""Made in HOME/x."""
import os  # of HOME/y
API_KEY = "{SECRET}"
PATH = "HOME/z"
def password(token, secret="abc"):
    return {{"password": "pa55", "x": token}}, f"k {{token}} --token=hunter22"
'''


def test_of_python_only_strings_and_comments_change(monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    source = PROGRAM.replace("HOME", "/home/ada")
    clean = scrubbed("x.py", source)
    tree = ast.parse(clean)
    assert SECRET not in clean and "pa55" not in clean and "abc" not in clean and "hunter22" not in clean
    assert "def password(token, secret=" in clean and len(tree.body) == len(ast.parse(source).body)
    assert "Made in ~/x" in clean and "of ~/y" in clean
    assert '"/home/ada/z"' in clean  # a path that the script may need
    assert '"~/z"' in scrubbed("x.py", source, everywhere=True)


def test_our_own_scripts_are_left_as_they_are() -> None:
    record = GraphRecord(CompileSettings(), placeholders=("x",), inputs={"inputs": []})
    graph = "class Repro(torch.nn.Module):\n    def forward(self, x):\n        return (x,)\n"
    text = script_text(record, graph, make().signature.to_json())
    assert scrubbed("original.py", text) == text
    assert scrubbed(RUNTIME, runtime_text()) == runtime_text()  # it holds the rules


def test_every_text_of_a_case_is_clean(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    monkeypatch.setenv("HOME", "/home/ada")
    case = make(script=("train.py", "--api-key", SECRET), no_repro=f"it says {SECRET} in /home/ada/x")
    files = dict.fromkeys(
        ("log.txt", "traceback.txt", "original.py", "graph.py"), f"# {SECRET} /home/ada/x\n"
    )
    folder = write_case(
        tmp_path, case, {**files, "record.json": json.dumps({"program": ["--token", SECRET]})}
    )
    folder = update_case(folder, {"repro.py": f"x = '{SECRET}'\n"}, error=f"the word was {SECRET}")
    for path in folder.path.iterdir():
        assert SECRET not in path.read_text() and "/home/ada" not in path.read_text(), path
    assert folder.case.script == ("train.py", "--api-key", "<hidden>")
    assert folder.case.error == "the word was <hidden>"
