"""How fast a build is, and how close to what the machine allows.

Every candidate runs in its own process, pinned to the same cores as the others; a parent process sends them the same
requests in turns. `protocol` defines the messages, `candidate`, `encoders` and `machine` are blockc's workers, and
`turns` is the parent.
"""
