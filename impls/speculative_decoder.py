"""A speculative decoder: rounds of draft, verify, commit and roll back over two KV caches.

Request r has the text x_0 ... x_{n-1}, prompt and emitted tokens; both caches hold x_0 ... x_{n-2}
at most, the last token is pending. Round t, with k drafts:

    draft       the draft model sees what it lacks of the text, then draft after draft:
                d_i ~ q_i = draft(. | x, d_0 ... d_{i-1}), i < k; it never sees d_{k-1}
    verify      the target sees x_{n-1}, d_0 ... d_{k-1} and gives p_0 ... p_k; a verify kernel
                says which drafts are accepted and draws the token after them
    commit      these tokens are emitted: n <- n + accepted + 1, one less at a stop or a budget
    roll back   both caches keep at most n - 1 entries, what followed is gone

Where all drafts were accepted the draft cache lacks the last of them: the next round's first step
sees two tokens. A request without drafts takes part with its bonus row alone. Stop tokens have no
probability in rows before the minimum. Requests that have ended append nothing to any cache and
are left out of the verification.

Shapes: R requests, L tokens of room; R' requests that go on, N = sum k, K = max k. Sources:
Leviathan et al. 2023; Chen et al. 2023, algorithm 2; drafts looked up: Saxena 2023.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernelassay.impls import torch_verify
from kernelassay.impls.caching import CacheSpec
from kernelassay.impls.contract import Capabilities, Conventions, Unsupported
from kernelassay.impls.decode_calls import check_decode, refuse_decode
from kernelassay.impls.decoding import (
    DECODING,
    DecodeCall,
    DecodeResult,
    Decoding,
    Step,
    Text,
)
from kernelassay.impls.dense_cache import DenseCache
from kernelassay.impls.tiny_transformer import (
    KeyValues,
    Model,
    cache_spec,
    cached_logits,
    full_law,
    mixed,
    model,
)
from kernelassay.impls.torch_verify import inverse_cdf, philox_uniforms
from kernelassay.impls.verification import Verifies, VerifyCall

OTHERS = 1000
"""What is added to a target's seed for another model: the far draft, and the near one's part."""
SHARE = 0.2
"""How much of the other model is mixed into the near draft."""
DRAFTING, VERIFYING = 0, 1
MIX = 0x5DEECE66D


def models(call: DecodeCall, dtype: torch.dtype) -> tuple[Model, Model | None]:
    """The target and the draft model, if there is one."""
    target = model(call.model, call.vocabulary, device=call.device, dtype=dtype)
    if call.drafts == "lookup":
        return target, None
    other = model(call.model + OTHERS, call.vocabulary, device=call.device, dtype=dtype)
    near = mixed(target, other, SHARE)
    return target, {"near": near, "far": other, "same": target}[call.drafts]


@dataclass(eq=False)
class Cached:
    """A model with a KV cache for each layer; held [R] tokens of each request's text are in it."""

    model: Model
    caches: Sequence[KeyValues]
    held: Tensor

    def see(self, text: Tensor, upto: Tensor) -> tuple[Tensor, Tensor]:
        """The text [R, L] as far as *upto* [R]: logits [N, V] after each token that is new, and
        offsets [R + 1], whose they are."""
        upto = torch.maximum(upto, self.held)
        place = torch.arange(text.shape[1], device=text.device)
        new = (place >= self.held[:, None]) & (place < upto[:, None])
        offsets = offsets_of(new.sum(1))
        logits = cached_logits(self.model, text[new], offsets, self.held, self.caches)
        self.held = upto
        return logits, offsets

    def keep(self, most: Tensor) -> None:
        """Nothing past *most* [R] tokens is held."""
        self.held = torch.minimum(self.held, most)
        for cache in self.caches:
            cache.truncate(self.held.int())


def offsets_of(counts: Tensor) -> Tensor:
    """0, n_0, n_0 + n_1, ... [R + 1], int32."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


def looked_up(text: Text, k: int, longest: int) -> Text:
    """At most k tokens that followed the text's last ones where they occurred before, last."""
    for n in range(min(longest, len(text) - 1), 0, -1):
        for j in range(len(text) - n - 1, -1, -1):
            if text[j : j + n] == text[-n:]:
                return text[j + n : j + n + k]
    return ()


@dataclass(eq=False)
class Loop:
    """The requests of a call under way: n [R] tokens of text [R, L], after t rounds."""

    call: DecodeCall
    verifier: Verifies
    longest: int
    target: Cached
    draft: Cached | None
    text: Tensor
    n: Tensor
    t: int = 0

    def __post_init__(self) -> None:
        call, device = self.call, self.text.device
        self.first = self.n  # tokens of the prompts
        self.greedy = torch.tensor(call.greedy, device=device)
        self.budget = torch.tensor(call.budget, device=device)
        self.minimum = torch.tensor(call.minimum, device=device)
        self.stop = padded(call.stop, device)
        self.live = self.budget > 0
        self.trace: list[list[Step]] = [[] for _ in call.prompts]
        self.logprobs: list[list[float]] = [[] for _ in call.prompts]
        self.both = [self.target, *([] if self.draft is None else [self.draft])]

    def run(self) -> None:
        """Rounds until every request has ended."""
        while bool(self.live.any()):
            self.next()

    def round(self, drafts: Sequence[int]) -> list[Step | None]:
        """One round with so many drafts of each request."""
        known = [len(rounds) for rounds in self.trace]
        if bool(self.live.any()):
            self.next(self.n.new_tensor(drafts))
        pairs = zip(self.trace, known, strict=True)
        return [rounds[-1] if len(rounds) > n else None for rounds, n in pairs]

    def prefill(self) -> None:
        """Both models see the prompts but for their last tokens."""
        for one in self.both:
            one.see(self.text, self.n - 1)

    def next(self, asked: Tensor | None = None) -> None:
        """Draft, verify, commit, roll back; *asked* [R] drafts, or what the schedule says."""
        k = torch.where(self.live, self.call.schedule[self.t % len(self.call.schedule)], 0)
        if asked is not None:
            k = torch.where(self.live, asked, 0)
        if self.draft is None:
            k, q = self.look_up(k), None
        else:
            q = self.propose(k, self.draft)
        drafts, p = self.drafts(k), self.target_laws(k)
        tokens, accepted = self.verify(k, drafts, p, q)
        ends = self.commit(tokens)
        for one in self.both:
            one.keep(self.n - 1)
        self.note(k, drafts, p, tokens, accepted)
        self.live = self.live.masked_scatter(self.live, ~ends)
        self.t += 1

    def look_up(self, k: Tensor) -> Tensor:
        """Drafts into the text, behind its end; how many they are [R]."""
        found = []
        for r, (most, n) in enumerate(zip(k.tolist(), self.n.tolist(), strict=True)):
            drafts = looked_up(tuple(self.text[r, :n].tolist()), most, self.longest)
            self.text[r, n : n + len(drafts)] = self.text.new_tensor(drafts)
            found.append(len(drafts))
        return k.new_tensor(found)

    def propose(self, k: Tensor, draft: Cached) -> Tensor:
        """Drafts of the draft model into the text, behind its end; their laws q [R, K, V]."""
        K, V = self.call.most, self.call.vocabulary
        laws = torch.zeros(len(k), K, V, device=k.device)
        logits, offsets = draft.see(self.text, torch.where(self.live, self.n, 0))
        for i in range(int(k.max())):
            here = i < k
            q = logits[offsets[1:][here].long() - 1].softmax(-1).float()
            drawn = inverse_cdf(q.double(), self.uniform(i)[here])
            self.text[here, self.n[here] + i] = torch.where(self.greedy[here], q.argmax(-1), drawn)
            laws[here, i] = q
            further = torch.where(i + 1 < k, self.n + i + 1, 0)
            logits, offsets = draft.see(self.text, further)
        return laws

    def uniform(self, i: int) -> Tensor:
        """A uniform [R] for draft i of this round."""
        if self.call.uniforms is not None:
            return self.call.uniforms.draft[:, self.t, i]
        return philox_uniforms(self.seeds(DRAFTING), torch.full_like(self.n, i))

    def seeds(self, purpose: int) -> Tensor:
        """A seed [R] of this round."""
        assert self.call.seeds is not None
        return self.n.new_tensor(self.call.seeds) * MIX + 2 * self.t + purpose

    def behind(self, counts: Tensor) -> Tensor:
        """Whether a place of the text [R, L] is one of the first *counts* [R] behind its end."""
        place = torch.arange(self.text.shape[1], device=counts.device) - self.n[:, None]
        return (place >= 0) & (place < counts[:, None])

    def drafts(self, k: Tensor) -> Tensor:
        """All drafts of the round [N]."""
        return self.text[self.behind(k)].int()

    def target_laws(self, k: Tensor) -> Tensor:
        """p [N + R', V] after the pending token and after each draft."""
        logits, offsets = self.target.see(self.text, torch.where(self.live, self.n + k, 0))
        rows = (offsets[1:] - offsets[:-1]).long()
        owner = torch.repeat_interleave(torch.arange(len(rows), device=k.device), rows)
        place = torch.arange(len(owner), device=k.device) - offsets[owner]
        emitted = (self.n - self.first)[owner] + place
        early = emitted < self.minimum[owner]
        tokens = torch.arange(logits.shape[1], device=k.device)
        stops = (self.stop[owner, :, None] == tokens).any(1)  # [N + R', V]
        return logits.masked_fill(early[:, None] & stops, -torch.inf).softmax(-1).float()

    def verify(
        self, k: Tensor, drafts: Tensor, p: Tensor, q: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """tokens [R', K + 1], -1 past the last one emitted, and accepted [R']."""
        live, K = self.live, int(k.max())
        place = torch.arange(K + 1, device=k.device)
        made, rows = place[:K] < k[:, None], (place <= k[:, None]) & live[:, None]
        seeds = accept = draw = None
        if (uniforms := self.call.uniforms) is None:
            seeds = self.seeds(VERIFYING)[live]
        else:
            accept = uniforms.accept[:, self.t, :K][made].float()
            draw = uniforms.draw[:, self.t, : K + 1][rows].float()
        result = self.verifier.verify(
            VerifyCall(
                drafts=drafts,
                offsets=offsets_of(k[live]),
                p=p,
                q=None if q is None or K == 0 else q[:, :K][made],
                greedy=self.greedy[live],
                stop=self.stop[live],
                budget=(self.budget - self.n + self.first)[live].int(),
                most=K,
                accept=accept,
                draw=draw,
                seeds=seeds,
            )
        )
        assert result.accepted is not None
        return result.tokens, result.accepted

    def commit(self, tokens: Tensor) -> Tensor:
        """The text goes on with the tokens; which requests [R'] end."""
        emitted = (tokens >= 0).sum(1)
        counts = torch.zeros_like(self.n).masked_scatter(self.live, emitted)
        self.text[self.behind(counts)] = tokens[tokens >= 0].long()
        self.n = self.n + counts
        last = tokens.gather(1, emitted[:, None] - 1)
        stopped = (last == self.stop[self.live]).any(1)
        spent = (self.n - self.first >= self.budget)[self.live]
        return stopped | spent

    def note(self, k: Tensor, drafts: Tensor, p: Tensor, tokens: Tensor, accepted: Tensor) -> None:
        """The round goes into the trace, the tokens' probabilities into logprobs."""
        lengths = [one.held.tolist() for one in self.both]
        log, made, n, row = p.double().log().tolist(), drafts.tolist(), 0, 0
        for i, r in enumerate(self.live.nonzero()[:, 0].tolist()):
            emitted = tuple(y for y in tokens[i].tolist() if y >= 0)
            own = int(k[r])
            held = [x[r] for x in lengths]
            step = Step(tuple(made[n : n + own]), int(accepted[i]), emitted, *held)
            self.trace[r].append(step)
            self.logprobs[r] += [log[row + j][y] for j, y in enumerate(emitted)]
            n, row = n + own, row + own + 1


def padded(rows: Sequence[Text], device: torch.device) -> Tensor:
    """Rows [R, S] of one length, S >= 1, int32: -1 stands where a row has no more."""
    S = max([1, *map(len, rows)])
    made = [[*row, *[-1] * (S - len(row))] for row in rows]
    return torch.tensor(made, dtype=torch.int32, device=device)


@dataclass(eq=False)
class SpeculativeDecoder:
    """The loop with a verify kernel, a KV cache and a floating point format of its models."""

    name: str
    capabilities: Capabilities
    verifier: Verifies
    opened: Callable[[CacheSpec], KeyValues] = DenseCache
    dtype: torch.dtype = torch.float64

    def decode(self, call: DecodeCall) -> DecodeResult:
        """The texts after the prompts; malformed calls raise ValueError."""
        loop = self.start(call)
        loop.run()
        ends = zip(loop.text.tolist(), loop.first.tolist(), loop.n.tolist(), strict=True)
        return DecodeResult(
            tokens=tuple(tuple(row[first:n]) for row, first, n in ends),
            trace=tuple(map(tuple, loop.trace)),
            logprobs=tuple(map(tuple, loop.logprobs)),
        )

    def start(self, call: DecodeCall) -> Loop:
        """The run before its first round; malformed calls raise ValueError."""
        check_decode(call)
        refuse_decode(self.name, self.capabilities, call)
        decoding = self.capabilities.decoding
        assert decoding is not None
        target, draft = models(call, self.dtype)
        lengths = [len(prompt) for prompt in call.prompts]
        room = max(lengths) + max(call.budget) + call.most + 1
        text = torch.zeros(call.requests, room, dtype=torch.int64)
        for r, prompt in enumerate(call.prompts):
            text[r, : len(prompt)] = torch.tensor(prompt)
        loop = Loop(
            call=call,
            verifier=self.verifier,
            longest=decoding.longest,
            target=self._cached(target, text),
            draft=None if draft is None else self._cached(draft, text),
            text=text.to(call.device),
            n=torch.tensor(lengths, device=call.device),
        )
        loop.prefill()
        return loop

    def _cached(self, m: Model, text: Tensor) -> Cached:
        R, room = text.shape
        device = m.weights["E"].device
        caches = [self.opened(cache_spec(m, R, room)) for _ in range(m.layers)]
        return Cached(m, caches, torch.zeros(R, dtype=torch.int64, device=device))

    def target_law(self, call: DecodeCall, text: Text) -> Tensor:
        """p [V] of the token after *text*."""
        return full_law(models(call, self.dtype)[0], text)

    def draft_law(self, call: DecodeCall, text: Text) -> Tensor:
        """q [V] of a draft after *text*."""
        draft = models(call, self.dtype)[1]
        if draft is None:
            raise Unsupported(f"{self.name}: drafts that are looked up have no law")
        return full_law(draft, text)


_INJECTED = Capabilities(
    devices=("cpu", "cuda"),
    dtypes=("fp32",),
    tiles=(16,),
    max_vocabulary=64,
    supports=frozenset(DECODING),
    decoding=Decoding(noise="injected"),
    conventions=Conventions(deterministic=True, validates_calls=True),
)
_SEEDED = replace(_INJECTED, decoding=Decoding(noise="seeded"))

adapter = SpeculativeDecoder("speculative_decoder", _INJECTED, torch_verify.adapter)
seeded = SpeculativeDecoder("speculative_decoder_seeded", _SEEDED, torch_verify.seeded)
single = SpeculativeDecoder(
    "speculative_decoder_fp32",
    replace(_INJECTED, decoding=Decoding(noise="injected", slack=2.0**-15)),
    torch_verify.adapter,
    dtype=torch.float32,
)
