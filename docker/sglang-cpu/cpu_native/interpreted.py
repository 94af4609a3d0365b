"""Triton kernels on a processor, by Triton's interpreter: SGLang has those of linear attention and
of state-space layers in Triton alone. They are slow, and fit for tiny models. The interpreter is
asked for by TRITON_INTERPRET=1, before Triton is imported."""


def repair_interpreter() -> None:
    """Have a scalar of a kernel be an index: it is an array of one element, which numpy no longer
    takes for a number."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched
