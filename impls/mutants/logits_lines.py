"""Lines of the PyTorch kernel of laws that its variants change, by what they do."""

MASK = "x = torch.where(call.mask, x, -math.inf)"
DIFFERENCE = "scaled = x - x.amax(1, keepdim=True)"
TEMPERATURE = "scaled = scaled / call.temperature[:, None]"
WEIGHTS = "w = torch.where(x == -math.inf, 0.0, scaled.exp())"
TOP_K = "w = torch.where(top_k_kept(x, call.top_k, maps.top_k_ties), w, 0.0)"
TOP_P = "w = torch.where(top_p_kept(x, w, call.top_p, maps.top_p_ties), w, 0.0)"
MIN_P = "w = torch.where(w >= call.min_p[:, None], w, 0.0)"
LAW = "return w / w.sum(1, keepdim=True)"
K_TIES = 'if ties == "all":\n        return x >= ordered'
KTH = "return x >= ordered.gather(1, k.long()[:, None] - 1)"
P_TIES = 'if ties == "all":\n        least'
BEFORE = "before = torch.cat((torch.zeros_like(sums[:, :1]), sums[:, :-1]), 1)"
RUN = "run = (before < (p * sums[:, -1])[:, None]) | (p == 1)[:, None]"
