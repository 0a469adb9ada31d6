"""A node's NVML without a GPU, behind the real ``pynvml``.

`library.FakeLibrary` stands in for the handle of the shared library that ``pynvml`` loads,
so struct packing, size probes and error mapping are the real ones. It has no state: which
`node.FakeNode` answers is chosen by a context variable, so that one process can be a
thousand nodes. `boards` is what each model of board can do, `described` reads a node from
a file, and `faults` is what goes wrong.
"""
