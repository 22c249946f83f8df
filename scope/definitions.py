"""The scalar formulas of every figure, each once; standard library only."""
