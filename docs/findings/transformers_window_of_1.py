"""transformers: with a sliding window of 1 a DynamicCache keeps everything, and decoding sees it.

DynamicSlidingWindowLayer.update keeps full[:, :, -window + 1 :], which for a window of 1 is
full[:, :, 0:]: all of it. The mask is made for the one key that get_mask_sizes names and is
broadcast over all that update returns, so that each token is decoded with full attention. A
StaticCache is right. Needs torch and transformers.
"""

import torch
import transformers
from transformers import DynamicCache, MistralConfig, MistralForCausalLM, StaticCache

print("transformers", transformers.__version__, "torch", torch.__version__)
tokens = torch.arange(1, 9)[None]
for window in (1, 4):
    config = MistralConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=window,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = MistralForCausalLM(config).double().eval()
    with torch.no_grad():
        full = model(tokens).logits
        for cache in (DynamicCache(config=config), StaticCache(config=config, max_cache_len=8)):
            steps = [model(tokens[:, t : t + 1], past_key_values=cache).logits for t in range(8)]
            off = float((torch.cat(steps, 1) - full).abs().max())
            kept = cache.layers[0].keys.shape[2]
            print(f"window {window}, {type(cache).__name__}: {kept} entries kept,", end=" ")
            print(f"logits off by {off:.1e} from one forward of all tokens; expected about 1e-15")
