"""The command line: nothing on it is ignored, every mistake is answered in a line, and saved flags come back."""

import pathlib
import subprocess
import sys

from absl import flags as absl_flags
import pytest

from rlzero.training import config as config_lib
from rlzero.training import flags

CONFIG = """
from rlzero.training import config

def get_config(algorithm="grpo"):
    if algorithm == "broken":
        return {}["missing"]
    if algorithm == "nothing":
        return None
    return config.Config(algorithm=config.algorithm_config(algorithm))
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Parses words as a program would, in a directory that holds x.py."""
    (tmp_path / "x.py").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)

    def run(*words, **kwargs):
        values = absl_flags.FlagValues()
        flags.define_flags(values)
        flags.define_flags(values)  # a second program in the same notebook
        argv = ["program", *words]
        monkeypatch.setattr(sys, "argv", argv)
        return flags.parse(argv, flag_values=values, **kwargs)
    return run


BASE = ("--config=x.py", "--workdir=run")


def test_overrides_reach_every_kind_of_field(command):
    config = command("--config=x.py:dapo", "--workdir=run", "--config.group_size=4", "--config.seed", "3",
                     "--config.optimizer.learning_rate=3e-6", "--config.rollout.on_exhausted=skip",
                     "--config.algorithm.dual_clip=3", "--config.rollout.keep_rollouts=false",
                     "--noconfig.algorithm.dynamic_sampling")
    assert (config.group_size, config.seed, config.optimizer.learning_rate) == (4, 3, 3e-6)
    assert (config.rollout.on_exhausted, config.algorithm.dual_clip) == ("skip", 3.0)
    assert not config.rollout.keep_rollouts and not config.algorithm.dynamic_sampling
    assert config.algorithm.name == "dapo"


def test_optional_numbers_can_be_switched_off(command):
    pathlib.Path("y.py").write_text(CONFIG.replace('"grpo"', '"grpo", cap=2.0').replace(
        "config.algorithm_config(algorithm)", "config.algorithm_config(algorithm, importance_cap=cap)"))
    assert command("--config=y.py", "--workdir=run").algorithm.importance_cap == 2.0
    config = command("--config=y.py", "--workdir=run", "--config.algorithm.importance_cap=none")
    assert config.algorithm.importance_cap is None


@pytest.mark.parametrize("words, answer", [
    ([*BASE, "--config.gruop_size=4"], "no setting --config.gruop_size. Did you mean --config.group_size=4?"),
    ([*BASE, "--config.learning_rate=1"], "--config.optimizer.learning_rate=1 or --config.critic.learning_rate=1?"),
    ([*BASE, "--config.model.group_size=4"], "Did you mean --config.group_size=4?"),
    ([*BASE, "--config.zzz=4"], "no setting --config.zzz. The fields are in rlzero/training/config.py."),
    ([*BASE, "--config.optimizer=adam"], "--config.optimizer is a section"),
    ([*BASE, "--config.seed.x=1"], "no setting --config.seed.x."),
    ([*BASE, "--config.=1"], "no setting --config.."),
    ([*BASE, "--config.group_size=abc"], "'abc', for example --config.group_size=8."),
    ([*BASE, "--config.group_size=4.5"], "for example --config.group_size=8."),
    ([*BASE, "--config.rollout.keep_rollouts=maybe"], "for example --config.rollout.keep_rollouts=True."),
    ([*BASE, "--config.algorithm.dual_clip=off"], "for example --config.algorithm.dual_clip=None."),
    ([*BASE, "--config.rollout.keep_rollouts", "False"], "takes its value with =, for example "
                                                         "--config.rollout.keep_rollouts=False."),
    ([*BASE, "--config.steps=3", "--config.steps=4"], "given twice with different values"),
    ([*BASE, "--config.algorithm.name=ppo"], "for example --config=configs/demo.py:ppo"),
    ([*BASE, "--config.optimizer.learning_rate=nan"], "learning_rate=nan: expected a number above 0 and at most 1"),
    ([*BASE, "--config.group_size=1", "--config.seed=-1"], "error: --config.seed=-1: expected"),
    ([*BASE, "lr=1e-5"], "lr=1e-5: this word belongs to no flag. Did you mean --config.optimizer.learning_rate=1e-5"),
    ([*BASE, "group_size=4"], "Did you mean --config.group_size=4?"),
    ([*BASE, "dapo"], "dapo: this word belongs to no flag. Settings are written --config.section.field=value."),
    ([*BASE, "--confg=x.py"], "no flag --confg. Did you mean --config=x.py?"),
    ([*BASE, "--group_size=4"], "no flag --group_size. Did you mean --config.group_size=4?"),
    (["--config=x.py"], "--workdir is missing, for example --workdir="),
    (["--workdir=run"], "--config is missing, for example --config=configs/demo.py."),
    (["--workdir=run", "--config.seed=1"], "--config.seed=1: give the config file that it changes"),
    (["--config=x.py", "--workdir=x.py"], "--workdir=x.py is a file"),
    (["--config=nosuch.py", "--workdir=run"], "there is no file nosuch.py (seen from "),
    (["--config=nosuch.py", "--workdir=run"], "./x.py."),
    (["--config=x.py:broken", "--workdir=run"], "KeyError: 'missing' (x.py, line 6)"),
    (["--config=x.py:gpro", "--workdir=run"], "did you mean 'grpo'"),
    (["--config=x.py:nothing", "--workdir=run"], "must return a config dataclass"),
    (["--config=syntax.py", "--workdir=run"], "syntax.py, line 1"),
    (["--config=empty.py", "--workdir=run"], "no function get_config()"),
    (["--config=broken.json", "--workdir=run"], "did you mean seed?"),
    (["--flagfile=nosuch.txt"], "nosuch.txt"),
])
def test_mistakes_are_answered_in_a_line_and_exit_with_2(command, capsys, words, answer):
    pathlib.Path("syntax.py").write_text("def get_config(:\n")
    pathlib.Path("empty.py").write_text("")
    pathlib.Path("broken.json").write_text('{"sed": 1}')
    with pytest.raises(SystemExit) as caught:
        command(*words)
    message = capsys.readouterr().err
    assert caught.value.code == 2
    assert answer in message
    assert "Traceback" not in message
    assert all(line.startswith("error: ") for line in message.splitlines())


@pytest.mark.parametrize("back", ["--flagfile=run/flags.txt", "--config=run/config.json"])
def test_saved_settings_come_back_and_can_be_overridden(command, back):
    config = command("--config=x.py:dapo", "--workdir=run", "--config.algorithm.dual_clip=3", "--config.seed=5",
                     "--config.algorithm.clip_high=inf", "--config.rollout.keep_rollouts=false",
                     "--config.optimizer.learning_rate=1.2345678901234567e-05")
    config_lib.save_resolved(config, "run")
    pathlib.Path("x.py").unlink()
    assert command(back, "--workdir=other") == config
    again = command(back, "--workdir=other", "--config.seed=6", "--config.algorithm.dual_clip=none")
    assert (again.seed, again.algorithm.dual_clip, again.steps) == (6, None, config.steps)


def test_programs_without_a_config(command):
    assert command(required=()) is None


@pytest.mark.parametrize("words, code", [(["--config=x.py", "--workdir=run"], 0),
                                         (["--config=x.py", "--workdir=run", "--config.gruop_size=4"], 2)])
def test_through_app_run(tmp_path, words, code):
    (tmp_path / "x.py").write_text(CONFIG)
    (tmp_path / "program.py").write_text(
        "from absl import app\nfrom rlzero.training import flags\nflags.define_flags()\n"
        "def main(config): print('group size', config.group_size)\n"
        "app.run(main, flags_parser=flags.parse)\n")
    result = subprocess.run([sys.executable, "program.py", *words], cwd=tmp_path, text=True, capture_output=True,
                            env={"PYTHONPATH": str(pathlib.Path(__file__).parents[2]), "PATH": ""}, check=False)
    assert result.returncode == code, result.stderr
    if code:
        assert result.stderr == ("error: there is no setting --config.gruop_size. "
                                 "Did you mean --config.group_size=4?\n")
    else:
        assert result.stdout == "group size 8\n"
