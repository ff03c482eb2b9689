"""KernelAssay: a property-based correctness suite for LLM inference kernels."""
