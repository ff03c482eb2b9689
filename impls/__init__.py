"""What is tested: the contract, bundled kernels, third-party adapters, mutants and controls."""
