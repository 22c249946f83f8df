"""Every collective of a training process: what was called, on which group, when, and how long the caller was blocked.

`CollectiveRecorder` (module `recorder`) attaches the best route that this torch offers and hands every call to a
`CallSink`, which `scope.run.calls.CallLog` is. Modules that import torch are imported only by `recorder`.
"""
