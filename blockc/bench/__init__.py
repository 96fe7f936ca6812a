"""How fast a build is, and how near to what the machine allows.

Every candidate runs in a process of its own, pinned to the same cores as the others; one parent sends them the same
requests by turns. `protocol` is what they speak, `candidate` and `machine` are those that come with blockc, `turns` is
the parent.
"""
