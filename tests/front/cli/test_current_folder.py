"""What lies in the current folder is imported by the watched program alone, never by torchsleuth."""

import subprocess
import sys

from program_runs import environment, sleuth

TRAP = "open('trapped', 'a').write(__name__); raise SystemExit('imported from the current folder')\n"


def test_modules_in_the_current_folder_are_not_ours(tmp_path):
    for name in ("click", "rich", "json", "shlex", "zipfile", "jinja2", "selectors", "statistics"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    for words in (["list"], ["show"], ["--help"], ["verify", "--help"]):
        done = sleuth(*words, cwd=tmp_path)
        assert done.status in (0, 2) and "current folder" not in done.stderr
    worker = "from torchsleuth.core.processes.starting import python_command as c; import subprocess, sys\n"
    worker += "sys.exit(subprocess.call(c(sys.executable, 'torchsleuth.front.cli.main', 'list')))\n"
    done = subprocess.run([sys.executable, "-P", "-c", worker], cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0
    assert not (tmp_path / "trapped").exists()


def test_the_program_sees_its_own_folder_as_it_does_without_us(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "helper.py").write_text("WORD = 'found'\n")
    (package / "main.py").write_text(
        "import sys, helper\nprint(helper.WORD, sys.path[0], sys.flags.safe_path)\n"
    )
    (package / "__init__.py").write_text("")
    (package / "module.py").write_text(
        "import sys\nfrom package import helper\nprint(helper.WORD, sys.path[0])\n"
    )
    for words in (["package/main.py"], ["-m", "package.module"]):
        bare = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
        )
        watched = sleuth("run", *words, cwd=tmp_path)
        assert bare.stdout.startswith("found") and watched.stdout == bare.stdout


def test_the_program_gets_the_descriptors_that_a_shell_opened_for_it(tmp_path):
    (tmp_path / "reads.py").write_text("import sys\nprint(open(sys.argv[1]).read(), end='')\n")
    line = f"{sys.executable} -m torchsleuth run reads.py <(echo handed over)"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout == "handed over\n", done.stderr
