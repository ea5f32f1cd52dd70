"""The command line of the programs: `--config=FILE.py[:argument]`, `--config.section.field=value` and `--workdir`.

The values are parsed by ml_collections' config_flags. What is added here is that nothing on the command line is ever
ignored or ends in a traceback: unknown names are answered with the nearest ones, words that belong to no flag are
errors, and the finished config is validated, all before any device work. Such errors are printed in a line or a few and
end the program with exit code 2.

    flags.define_flags()                      # in a program, at module level

    def main(config): ...

    app.run(main, flags_parser=flags.parse)
"""

import dataclasses
import difflib
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import flags
from absl import logging
from ml_collections import config_flags

from rlzero.training import config as config_lib
from rlzero.training import saved_config
from rlzero.training import sections
from rlzero.training import validation

_OVERRIDE = re.compile(r"--?(?P<no>no)?config\.(?P<name>[^=]*)(?P<given>=(?P<value>.*))?", re.DOTALL)
_BOOLS = ("true", "false", "t", "f", "1", "0", "yes", "no", "y", "n")


class UsageError(ValueError):
    """A command line that cannot be followed; its text is what the user reads."""


class _OptionalFloatParser(flags.FloatParser):
    """A number, or `none`."""

    def parse(self, argument):
        return None if str(argument).lower() == "none" else super().parse(argument)


def define_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines --config and --workdir, once however often it is called (a notebook imports several programs)."""
    flags.disclaim_key_flags()  # so that --help of a program lists them
    if "config" in flag_values:
        return
    config_flags.register_flag_parser_for_type(sections.OptionalFloat, _OptionalFloatParser())
    config_flags.DEFINE_config_file(
        "config", None, "Config file with get_config(), and its argument: configs/demo.py:dapo; or the config.json of "
        "a run. Any setting can follow by its path: --config.optimizer.learning_rate=3e-6.",
        lock_config=False, flag_values=flag_values)
    flags.DEFINE_string("workdir", None, "Directory for checkpoints, metrics and rollouts. A run that finds its own "
                        "checkpoints there goes on.", flag_values=flag_values)


def parse(argv: Sequence[str], *, required: Iterable[str] = ("config", "workdir"),
          validate: Callable[[Any], None] = validation.validate, flag_values: flags.FlagValues = flags.FLAGS) -> Any:
    """Parses a command line; made for `app.run(main, flags_parser=parse)`, which hands the result to main.

    Args:
      argv: program name and words, as in sys.argv. (config_flags also looks at sys.argv itself.)
      required: flags that must be given.
      validate: raises ValueError for a config that cannot run.
      flag_values: where the flags are defined.

    Returns:
      The validated config, or None when --config is neither given nor required.

    Raises:
      SystemExit: with code 2, after the reason was printed to stderr.
    """
    try:
        config = _parse(argv, required, validate, flag_values)
        quiet(flag_values)
        return config
    except UsageError as error:
        sys.stderr.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
        raise SystemExit(2) from None


def quiet(flag_values: flags.FlagValues = flags.FLAGS) -> None:
    """Keeps jax and orbax, which chat at level info, from the screen unless --verbosity asks for it."""
    if "verbosity" not in flag_values or not flag_values["verbosity"].present:
        logging.set_verbosity(logging.WARNING)


def _parse(argv, required, validate, flag_values) -> Any:
    try:
        words = flag_values.read_flags_from_files(list(argv[1:]), force_gnu=False)
    except flags.Error as error:
        raise UsageError(str(error)) from error
    words = _with_saved_config(words)
    path = _config_path(words)
    defaults = load_config(path) if path else None
    _check_overrides(words, list(argv[1:]), defaults)
    leftover = _parse_words([argv[0], *words], defaults, flag_values)
    if leftover:
        raise UsageError(_leftover_word(leftover[0], _names(defaults)))
    for name in required:
        if not flag_values[name].value:
            example = {"config": "configs/demo.py", "workdir": "/tmp/rlzero"}.get(name, "...")
            raise UsageError(f"--{name} is missing, for example --{name}={example}.")
    if flag_values.workdir and os.path.exists(flag_values.workdir) and not os.path.isdir(flag_values.workdir):
        raise UsageError(f"--workdir={flag_values.workdir} is a file; give a directory.")
    config = flag_values.config
    if config is not None:
        try:
            validate(config)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return config


def load_config(path: str) -> Any:
    """Runs the `get_config` of a config file.

    Args:
      path: the value of --config, such as "configs/demo.py:dapo".

    Returns:
      The dataclass that `get_config` returns.

    Raises:
      UsageError: no such file, the file fails, or it returns something else.
    """
    file, *argument = path.split(":", 1)
    if not os.path.isfile(file):
        raise UsageError(f"--config={path}: there is no file {file} (seen from {os.getcwd()}).{_neighbours(file)}")
    try:
        config = runpy.run_path(file)["get_config"](*argument)
    except Exception as error:  # The user's own program: whatever it raises is shown with its place, and ends the run.
        raise UsageError(f"--config={path}: {_failure(file, error)}") from error
    if not dataclasses.is_dataclass(config):
        raise UsageError(f"--config={path}: get_config() must return a config dataclass, such as "
                         f"rlzero.training.config.Config; it returned {config!r}.")
    return config


def _neighbours(file: str) -> str:
    """The config files where the wished one was looked for, as a sentence."""
    folder = os.path.dirname(file) or "."
    if not os.path.isdir(folder):
        return ""
    found = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
    return f" There are: {', '.join(os.path.join(folder, name) for name in found)}." if found else ""


def _failure(file: str, error: Exception) -> str:
    """What a config file raised, and at which of its lines."""
    if isinstance(error, KeyError) and error.args == ("get_config",):
        return "the file has no function get_config()."
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    what = str(error) if isinstance(error, (ValueError, SyntaxError)) else f"{type(error).__name__}: {error}"
    return " ".join(what.split()) + (f" ({file}, line {line})" if line else "")


def _with_saved_config(words: list[str]) -> list[str]:
    """Reads `--config=RUN/config.json` through the config file that loads such a JSON."""
    return [re.sub(r"^(--?config=)(.+\.json)$", lambda m: f"{m[1]}{saved_config.__file__}:{m[2]}", word)
            for word in words]


def _config_path(words: list[str]) -> str | None:
    path = None
    for word, following in zip(words, [*words[1:], ""]):
        name, given, value = word.partition("=")
        if name in ("--config", "-config"):
            path = value if given else following
    return path


def _check_overrides(words: list[str], typed: list[str], defaults: Any) -> None:
    """Refuses overrides that config_flags would answer with a traceback or misread."""
    settings = config_lib.leaves(defaults) if defaults is not None else {}
    seen = {}
    for word, following in zip(words, [*words[1:], ""]):
        match = _OVERRIDE.fullmatch(word)
        if not match:
            continue
        if defaults is None:
            raise UsageError(f"{word}: give the config file that it changes, for example --config=configs/demo.py.")
        name, value = match["name"], match["value"]
        if name not in settings:
            raise UsageError(_unknown_setting(match, settings))
        field, default = settings[name]
        if field.type is bool and not match["given"] and following.lower() in _BOOLS:
            raise UsageError(f"{word} {following}: a switch takes its value with =, for example {word}={following}.")
        if name == "algorithm.name" and value != default:
            raise UsageError(f"{word}: the name is a label and sets nothing else; choose the algorithm in the config, "
                             f"for example --config=configs/demo.py:{value}, and single columns of it by their flags.")
        if word in typed and seen.setdefault(name, word) != word:
            raise UsageError(f"{seen[name]} and {word}: one setting, given twice with different values; keep one.")


def _parse_words(argv: list[str], defaults: Any, flag_values: flags.FlagValues) -> list[str]:
    """Lets absl parse; returns the words that belong to no flag."""
    try:
        return flag_values(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        raise UsageError(_unknown_flag(error, _names(defaults), flag_values)) from error
    except flags.Error as error:
        text = " ".join(str(error).split())
        match = re.search(r"flag --config\.([\w.]+)=", text)
        example = f", for example --config.{match[1]}={config_lib.leaves(defaults)[match[1]][1]}." if match else ""
        raise UsageError(text + example) from error


def _names(defaults: Any) -> list[str]:
    """Paths of all settings; of a training run when no config was given."""
    return list(config_lib.leaves(config_lib.Config() if defaults is None else defaults))


def suggestions(name: str, known: Sequence[str]) -> list[str]:
    """The known dotted names that a wrong one may have meant, best first, at most three.

    A last part that is right (`group_size` or `model.learning_rate`), initials (`lr`) and misspellings all count.
    """
    last = name.rpartition(".")[2]
    lasts = {path: path.rpartition(".")[2] for path in known}
    exact = [path for path in known if lasts[path] == last]
    initials = [path for path in known if "".join(word[0] for word in lasts[path].split("_")) == last]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.75)
    near_last = difflib.get_close_matches(last, list(lasts.values()), n=1, cutoff=0.6)
    return (exact or near or initials or [path for path in known if lasts[path] in near_last])[:3]


def _did_you_mean(found: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(found)}?" if found else ""


def _unknown_setting(match: re.Match, settings: dict[str, Any]) -> str:
    name, value = match["name"], match["given"] or ""
    inside = [path for path in settings if path.startswith(name + ".")]
    if inside:
        return f"--config.{name} is a section; set one of its fields, for example --config.{inside[0]}="\
               f"{settings[inside[0]][1]}."
    found = suggestions(name, list(settings))
    hint = _did_you_mean([f"--config.{path}{value}" for path in found])
    return f"there is no setting --config.{name}.{hint or ' The fields are in rlzero/training/config.py.'}"


def _unknown_flag(error: flags.UnrecognizedFlagError, names: list[str], flag_values: flags.FlagValues) -> str:
    _, given, value = str(error.flagvalue).partition("=")  # absl keeps the whole word there
    value = given + value
    own = [flag for flag in flag_values if "." not in flag]
    found = difflib.get_close_matches(error.flagname, own, n=1, cutoff=0.7)
    found = found or [f"config.{path}" for path in suggestions(error.flagname.removeprefix("config."), names)]
    return f"there is no flag --{error.flagname}.{_did_you_mean([f'--{flag}{value}' for flag in found])}"


def _leftover_word(word: str, names: list[str]) -> str:
    name, given, value = word.partition("=")
    found = suggestions(name.lstrip("-").removeprefix("config."), names) if given else []
    hint = _did_you_mean([f"--config.{path}={value}" for path in found])
    return f"{word}: this word belongs to no flag.{hint or ' Settings are written --config.section.field=value.'}"
