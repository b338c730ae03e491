"""Starts a kernel of ipykernel's make that loses no output to a client that reads slowly. Argument `bash`: Bash's."""

import os
import sys

if __name__ == "__main__":
    # The folder of the context comes back when the kernel is up; nothing in it is to be taken for a module until then.
    sys.path[:] = [path for path in sys.path if path not in ("", os.getcwd())]

    import zmq
    from ipykernel.kernelapp import IPKernelApp

    class KernelApp(IPKernelApp):
        def init_iopub(self, context: zmq.Context) -> None:
            # What does not fit would be dropped without a word.
            context.sndhwm = 0
            super().init_iopub(context)

    if sys.argv[1:2] == ["bash"]:
        from bash_kernel.kernel import BashKernel

        sys.argv.pop(1)
        KernelApp.launch_instance(kernel_class=BashKernel)
    else:
        KernelApp.launch_instance()
