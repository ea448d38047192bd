"""PyTorch on the CPU or a CUDA device: eager, traced and frozen, compiled, or as a CUDA graph.

Without options: traced, frozen and optimised for inference on the CPU; with `cuda` eager.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines import Arrays, EngineError, Loaded, Setup
from engines.torch_net import build

WARM_RUNS = 3
TIMED_RUNS = 20
MODES = ("eager", "graphs", "compile")
NO_INT8 = (
    "PyTorch has no int8 convolution on CUDA for such a model; that takes a conversion by other"
    " packages (TensorRT, torchao)"
)


def open_model(setup: Setup) -> Loaded:
    if setup.dtype == "int8":
        raise EngineError(NO_INT8)
    import torch

    variant = Variant(torch, setup)
    with torch.inference_mode():
        variant.set_precision()
        runner = variant.runner()
        runner.prepare()
    return Loaded(variant.title, runner.call, {}, runner.finish, runner.close)


class Variant:
    """What the options ask for: device, numbers, memory order, mode. Raises EngineError."""

    def __init__(self, torch: Any, setup: Setup) -> None:
        self.torch, self.setup = torch, setup
        self.cuda = "cuda" in setup.options
        modes = [m for m in MODES if m in setup.options]
        if len(modes) > 1:
            raise EngineError(f"one of {', '.join(modes)} at a time")
        self.mode = modes[0] if modes else "eager" if self.cuda else "frozen"
        if self.cuda and not torch.cuda.is_available():
            raise EngineError("PyTorch sees no CUDA device")
        if not self.cuda and (self.mode == "graphs" or setup.dtype == "tf32"):
            raise EngineError(f"{'+'.join(setup.options)} needs CUDA: add the option cuda")
        torch.set_num_threads(setup.threads)
        self.device = torch.device("cuda" if self.cuda else "cpu")
        kinds = {"f16": torch.float16, "bf16": torch.bfloat16}
        self.dtype = kinds.get(setup.dtype, torch.float32)
        self.last = "channels_last" in setup.options

    @property
    def title(self) -> str:
        words = "+".join(self.setup.options)
        return f"torch {self.torch.__version__}" + (f" {words}" if words else "")

    def set_precision(self) -> None:
        """Switch TF32 on or off for the products of this process; CUDA libraries may search."""
        if not self.cuda:
            return
        cuda, cudnn = self.torch.backends.cuda, self.torch.backends.cudnn
        wanted = self.setup.dtype == "tf32"
        cudnn.benchmark = True
        if hasattr(cuda.matmul, "fp32_precision") and hasattr(cudnn, "conv"):
            cuda.matmul.fp32_precision = "tf32" if wanted else "ieee"
            cudnn.conv.fp32_precision = "tf32" if wanted else "ieee"
        else:
            cuda.matmul.allow_tf32 = cudnn.allow_tf32 = wanted

    def placed(self, array: np.ndarray) -> Any:
        """Return an input as a tensor on the device."""
        tensor = self.torch.from_numpy(array).to(self.device).to(self.dtype)
        if self.last and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=self.torch.channels_last)
        return tensor

    def module(self) -> Any:
        """Return the network on the device."""
        made = build(self.setup.model).eval().to(self.device, self.dtype)
        return made.to(memory_format=self.torch.channels_last) if self.last else made

    def runner(self) -> Runner:
        """Return what runs the network in this mode."""
        net = self.module()
        zeros = [self.placed(np.zeros(s, np.float32)) for s in self.setup.shapes.values()]
        if self.mode == "frozen":
            traced = self.torch.jit.trace(net, zeros)
            net = self.torch.jit.optimize_for_inference(self.torch.jit.freeze(traced))
        if self.mode == "compile":
            net = self.torch.compile(net, mode="reduce-overhead" if self.cuda else None)
        return (Graphed if self.mode == "graphs" else Runner)(self, net, zeros)


@dataclass
class Runner:
    """A network with inputs on the device."""

    variant: Variant
    net: Callable[..., Any]
    inputs: list[Any]

    def prepare(self) -> None:
        for _ in range(WARM_RUNS):
            self.net(*self.inputs)

    def on_device(self) -> Sequence[Any]:
        """Run on the inputs as they are; return the outputs, which may not be there yet."""
        found = self.net(*self.inputs)
        return found if isinstance(found, (list, tuple)) else [found]

    def place(self, feeds: Arrays) -> None:
        self.inputs = [self.variant.placed(feeds[name]) for name in self.variant.setup.shapes]

    def call(self, feeds: Arrays) -> list[np.ndarray]:
        with self.variant.torch.inference_mode():
            self.variant.set_precision()
            self.place(feeds)
            return [t.float().cpu().numpy() for t in self.on_device()]

    def finish(self, feeds: Arrays) -> dict[str, Any]:
        """Return the median time of a run between two events of the device."""
        if not self.variant.cuda:
            return {}
        cuda, times = self.variant.torch.cuda, []
        with self.variant.torch.inference_mode():
            self.variant.set_precision()
            self.place(feeds)
            for _ in range(TIMED_RUNS):
                begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self.on_device()
                end.record()
                cuda.synchronize()
                times.append(begin.elapsed_time(end) * 1e-3)
        return {"device_s": statistics.median(times)}

    def close(self) -> None:
        """Give the device's memory back."""
        torch, compiled = self.variant.torch, self.variant.mode == "compile"
        self.net, self.inputs = (lambda *given: ()), []
        if compiled:
            torch.compiler.reset()
        if self.variant.cuda:
            torch.cuda.empty_cache()


class Graphed(Runner):
    """A network recorded once as a CUDA graph and replayed over the same memory."""

    def prepare(self) -> None:
        torch = self.variant.torch
        with ExitStack() as stack:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            stack.enter_context(torch.cuda.stream(stream))
            super().prepare()
            torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = super().on_device()

    def on_device(self) -> Sequence[Any]:
        self.graph.replay()
        return list(self.outputs)

    def place(self, feeds: Arrays) -> None:
        for held, name in zip(self.inputs, self.variant.setup.shapes, strict=True):
            held.copy_(self.variant.placed(feeds[name]))

    def close(self) -> None:
        self.outputs = []
        del self.graph
        super().close()
