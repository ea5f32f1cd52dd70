"""Starts the unmodified HTTP server of SGLang on a machine without a GPU, in an environment without GPU packages.

`launch/sglang_cpu.sh start` runs this with the Python of its own environment; the arguments are those of
`python -m sglang.launch_server`. Nothing of the server is replaced. What follows only lets it be imported:

* triton, a compiler of GPU kernels (1 GB): modules that define such kernels import it. A stand-in hands out names that
  can be imported, subclassed and used as decorators; no such kernel ever runs on a CPU.
* sgl_kernel, kernels for CUDA and Intel AMX: names ending in `_cpu` are imported from it for speculative decoding and
  for moving KV caches. They exist here, and raise when called.
* torchvision's wheel is linked against CUDA, so beside a CPU build of torch its operators are missing, and importing it
  fails where it describes two of them: they are declared here.

The server's child processes import this file again before anything else, so they get the stand-ins too.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # some samplers are under torch.compile, which needs a C++ compiler

import torch  # noqa: E402


class _StandIn(types.ModuleType):
    """A module of which any name can be imported: capitalized ones are classes, the others modules and decorators."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            value = type(name, (), {"__init__": lambda self, *args, **kwargs: None})
        else:
            value = _StandIn(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value

    def __call__(self, *args, **kwargs):
        if len(args) == 1 and callable(args[0]) and not kwargs:
            return args[0]
        return lambda function: function


class _Triton(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for triton and everything below it."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        if module.__name__ == "triton":
            module.__version__ = "3.0.0"
            # The two plain functions of triton that Python code calls as well.
            module.cdiv = lambda a, b: -(-a // b)
            module.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()


class _Kernels(types.ModuleType):
    """The `*_cpu` names of sgl_kernel."""

    def __getattr__(self, name):
        if not name.endswith("_cpu"):
            raise AttributeError(name)

        def absent(*args, **kwargs):
            raise NotImplementedError(f"sgl_kernel.{name} is a compiled kernel that this environment does without")

        return absent


def install_stand_ins() -> None:
    """Makes `import sglang` work; to be called before it."""
    if importlib.util.find_spec("triton") is None:
        sys.meta_path.insert(0, _Triton())
    kernels = _Kernels("sgl_kernel")
    kernels.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None)
    sys.modules["sgl_kernel"] = kernels
    for operator in ("nms", "qnms"):
        _TORCHVISION.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


_TORCHVISION = torch.library.Library("torchvision", "DEF")  # its declarations last as long as it does
install_stand_ins()

if __name__ == "__main__":
    main()
