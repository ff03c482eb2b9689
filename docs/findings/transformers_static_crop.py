"""transformers: StaticCache.crop drops no entry once a sliding window is full, and says nothing.

A rejected draft stays in the ring: StaticSlidingWindowLayer.crop lowers the lengths alone, and the
next update moves the window on with the draft in it. DynamicCache raises a RuntimeError there.
The layer's is_croppable is False, but crop does not look at it. Needs torch and transformers.
"""

import torch
import transformers
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, StaticCache

WINDOW, DRAFT = 4, 9
print("transformers", transformers.__version__, "torch", torch.__version__)
config = MistralConfig(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    sliding_window=WINDOW,
    initializer_range=0.3,
)
torch.manual_seed(0)
model = MistralForCausalLM(config).double().eval()
tokens = torch.arange(1, 9)[None]
with torch.no_grad():
    full = model(tokens).logits
    for n in (3, 4, 5):
        for cache in (StaticCache(config=config, max_cache_len=8), DynamicCache(config=config)):
            model(tokens[:, :n], past_key_values=cache)
            model(torch.tensor([[DRAFT]]), past_key_values=cache)
            print(f"{n} tokens and a rejected draft, {type(cache).__name__}:", end=" ")
            try:
                cache.crop(-1)
            except RuntimeError as error:
                print(f"refused: {str(error)[:60]}...")
                continue
            came = model(tokens[:, n : n + 1], past_key_values=cache).logits[0, -1]
            off = float((came - full[0, n]).abs().max())
            print(f"the next logits are off by {off:.1e}; expected about 1e-15, or a refusal")
