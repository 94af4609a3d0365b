"""The platform. Invariant: nothing here promises a kernel, so SGLang takes the pure-torch path of
each layer (`forward_native`), and Triton's interpreter for layers that have none."""

from sglang.srt.platforms.cpu import CpuSRTPlatform
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities

from cpu_native import host_memory, linear_attention, minimax
from cpu_native.interpreted import repair_interpreter


class CpuNative(CpuSRTPlatform):
    """A CPU without the AMX kernels that SGLang's own CPU platform builds upon."""

    _enum = PlatformEnum.OOT  # out of tree: as CPU, SGLang would import those kernels
    capabilities = PlatformCapabilities()

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def init_backend(self) -> None:
        """Set up a worker, before its model is built."""
        repair_interpreter()
        host_memory.pin_nothing()

    def post_load_model(self, model: object) -> None:
        """Replace kernels, before the model computes."""
        host_memory.use_plain_memory()
        linear_attention.use_torch()
        minimax.use_torch()
