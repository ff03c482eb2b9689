"""What is true: visible sets, attention in float64 and in exact arithmetic, error budgets.

Written from the mathematics; knows nothing of kernels, Hypothesis or pytest.
"""
