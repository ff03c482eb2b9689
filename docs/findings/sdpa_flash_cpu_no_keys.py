"""PyTorch's CPU flash operator ends the process with SIGFPE for no keys, or no queries.

scaled_dot_product_attention itself keeps such calls from it; who wants the LSE calls the operator.
"""

import signal
import subprocess
import sys

CALL = """
import torch
q, k = torch.ones(1, 1, {q}, 64), torch.ones(1, 1, {k}, 64)
print(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k, 0.0, False)[0].shape)
"""
for tq, tk in ((1, 1), (1, 0), (0, 1)):
    ran = subprocess.run([sys.executable, "-c", CALL.format(q=tq, k=tk)], capture_output=True)
    ended = signal.Signals(-ran.returncode).name if ran.returncode < 0 else ran.stdout.decode()
    print(f"Tq {tq}, Tk {tk}: {ended.strip()}")
