"""The tiny transformer, the dense cache and the speculative decoder."""

import math
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.impls.caching import CacheSpec
from kernelassay.impls.contract import Capabilities, ContractError, Unsupported, checked_adapter
from kernelassay.impls.decode_calls import check_decode, decoding_used
from kernelassay.impls.decoding import DECODING, DecodeCall, Decoding, Uniforms
from kernelassay.impls.dense_cache import DenseCache
from kernelassay.impls.speculative_decoder import adapter, looked_up, seeded, single
from kernelassay.impls.tiny_transformer import (
    cache_spec,
    cached_logits,
    full_law,
    hashed,
    mixed,
    model,
)
from kernelassay.oracle.decoding import Turn, states
from kernelassay.oracle.decoding import looked_up as right_look_up

TEXTS = ((0, 1, 2, 3), (1,), (3, 3, 2), (0, 2, 1, 1, 0))


def call(**fields: object) -> DecodeCall:
    """A call of one sampled request, or as *fields* say."""
    given_: dict[str, object] = {
        "model": 1,
        "vocabulary": 4,
        "prompts": ((0, 1),),
        "stop": ((),),
        "budget": (4,),
        "minimum": (0,),
        "greedy": (False,),
        "seeds": (7,),
    }
    return DecodeCall(**(given_ | fields))  # type: ignore[arg-type]


def test_weights_are_a_function_of_the_seed() -> None:
    """A few thousand numbers spread over [0, 1), another seed or matrix gives others."""
    u = hashed(5, 0, 4096)
    assert (u == hashed(5, 0, 4096)).all()
    assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * 4096)
    assert 0 <= u.min() < 0.01
    assert 0.99 < u.max() < 1
    assert not set(u) & set(hashed(6, 0, 4096)) | set(u) & set(hashed(5, 1, 4096))
    assert 2000 < sum(w.numel() for w in model(0, 4).weights.values()) < 8000


@pytest.mark.parametrize("V", [2, 3, 64])
def test_laws_depend_on_every_token(V: int) -> None:
    """A law of V positive numbers; each token before, and its place, changes it."""
    text = (0, 1, 0, 1, 1)
    p = full_law(model(2, V), text)
    assert p.shape == (V,)
    assert float(p.min()) > 0
    assert float(p.sum()) == pytest.approx(1)
    for i in range(len(text)):
        other = (*text[:i], 1 - text[i], *text[i + 1 :])
        assert float((full_law(model(2, V), other) - p).abs().max()) > 1e-6
    assert not torch.equal(full_law(model(2, V), (1, 0, 0, 1, 1)), p)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), max_size=3))
def test_cached_is_uncached(cuts: list[list[int]]) -> None:
    """However the texts are cut into calls, and some bring nothing to a call."""
    m = model(1, 4)
    caches = [DenseCache(cache_spec(m, 4, 5)) for _ in range(m.layers)]
    done = [0] * 4
    for sizes in [*cuts, [5] * 4]:
        new = [t[d : d + n] for t, d, n in zip(TEXTS, done, sizes, strict=True)]
        offsets = torch.tensor([0, *accumulate(map(len, new))], dtype=torch.int32)
        tokens = torch.tensor([x for part in new for x in part], dtype=torch.long)
        laws = cached_logits(m, tokens, offsets, torch.tensor(done), caches).softmax(-1)
        for r, part in enumerate(new):
            for i in range(len(part)):
                right = full_law(m, TEXTS[r][: done[r] + i + 1])
                assert float((laws[offsets[r] + i] - right).abs().max()) < 1e-12
            done[r] += len(part)
    assert done == [*map(len, TEXTS)]


def test_truncated_is_never_seen() -> None:
    """Entries that were dropped leave no trace in what follows."""
    m = model(1, 4)
    caches = [DenseCache(cache_spec(m, 1, 8)) for _ in range(m.layers)]
    for text, keep in (((0, 1, 2, 2, 2), 2), ((3, 3, 0), 4), ((1,), 5)):
        held = int(caches[0].lengths[0])
        laws = cached_logits(
            m, torch.tensor(text), torch.tensor([0, len(text)]), torch.tensor([held]), caches
        ).softmax(-1)
        for cache in caches:
            cache.truncate(torch.tensor([keep], dtype=torch.int32))
    assert float((laws[-1] - full_law(m, (0, 1, 3, 3, 1))).abs().max()) < 1e-12


def test_a_dense_cache_keeps_no_more_than_it_has() -> None:
    """To keep more is an error; an empty request reads zeros."""
    spec = CacheSpec(
        R=2, Hq=2, Hkv=1, D=4, Dv=4, most=3, dtype=torch.float64, device=torch.device("cpu")
    )
    cache = DenseCache(spec)
    rows = torch.ones(1, 1, 4, dtype=torch.float64)
    cache.append(rows, rows, torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"got \[2, 0\], have \[1, 0\]"):
        cache.truncate(torch.tensor([2, 0]))
    out = cache.attend(torch.ones(2, 2, 1, 4, dtype=torch.float64))
    assert out[0].eq(1).all()
    assert out[1].eq(0).all()


def test_a_mixture_lies_between() -> None:
    """At its ends it is one model and the other."""
    one, other = model(1, 4), model(2, 4)
    for share, same in ((0.0, one), (1.0, other)):
        got = full_law(mixed(one, other, share), (0, 1))
        assert float((got - full_law(same, (0, 1))).abs().max()) < 1e-9


@given(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), st.integers(0, 3))
def test_drafts_are_looked_up_as_declared(text: tuple[int, ...], k: int) -> None:
    """As the oracle's own definition has it."""
    assert looked_up(text, k, 2) == right_look_up(text, k, 2)


def test_rounds_and_caches_are_those_of_the_transaction_model() -> None:
    """A run with all that can happen in it: the trace is the oracle's, the text its sum."""
    made = seeded.decode(
        call(prompts=((0, 1), (2,)), stop=((), (1,)), budget=(9, 9), minimum=(0, 4),
             greedy=(False, True), seeds=(3, 4), schedule=(3, 0, 2))
    )  # fmt: skip
    assert made.trace is not None
    for prompt, text, trace in zip(((0, 1), (2,)), made.tokens, made.trace, strict=True):
        turns = [Turn(s.drafts, s.accepted, s.emitted) for s in trace]
        assert tuple(y for turn in turns for y in turn.emitted) == text
        after = states(prompt, turns)[1:]
        assert [(s.target, s.draft) for s in trace] == [(x.target, x.draft) for x in after]


def test_seeds_and_formats_agree_where_they_must() -> None:
    """The same seed gives the same text; in fp32 the greedy text is that of fp64."""
    assert seeded.decode(call()).tokens == seeded.decode(call()).tokens
    many = {seeded.decode(call(seeds=(s,))).tokens for s in range(20)}
    assert len(many) > 3
    zero = torch.zeros(1, 4, 3, dtype=torch.float64)
    noise = Uniforms(draft=zero[..., :2], accept=zero[..., :2], draw=zero)
    both = [x.decode(call(greedy=(True,), seeds=None, uniforms=noise)) for x in (adapter, single)]
    assert both[0].tokens == both[1].tokens


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompts": ((),)}, "prompts"),
        ({"prompts": ((4,),)}, "none of 0 to 3"),
        ({"stop": ()}, "stop: got 0 entries"),
        ({"budget": (-1,)}, "negative"),
        ({"schedule": ()}, "schedule"),
        ({"stop": ((0, 1, 2, 3),), "minimum": (1,)}, "minimum"),
    ],
)
def test_malformed_calls_are_refused(fields: dict[str, object], message: str) -> None:
    """With a message that names the field."""
    with pytest.raises(ValueError, match=message):
        check_decode(call(**fields))


def test_declined_features_are_refused() -> None:
    """Every feature of a call is one that the capabilities list."""
    wide = call(prompts=((0, 1), (2,)), stop=((), (1,)), budget=(0, 3), minimum=(0, 1),
                greedy=(False, True), seeds=(3, 4), schedule=(1, 0))  # fmt: skip
    told = {"decode.trace", "decode.logprobs", "decode.lookup", "decode.rounds"}
    assert decoding_used(wide) == set(DECODING) - told
    less = replace(seeded.capabilities, supports=frozenset({"decode"}))
    with pytest.raises(Unsupported, match=r"decode\.model"):
        replace(seeded, capabilities=less).decode(call())
    with pytest.raises(Unsupported, match="dtype bf16"):
        seeded.decode(call(dtype="bf16"))
    with pytest.raises(Unsupported, match="no law"):
        seeded.draft_law(call(drafts="lookup"), (0,))


def test_the_contract_wants_a_declaration() -> None:
    """A decode loop says how it works; unknown words are refused."""
    assert checked_adapter(adapter) is adapter
    with pytest.raises(ContractError, match="decoding"):
        Capabilities(devices=("cpu",), dtypes=("fp32",), supports=frozenset({"decode"}))
    with pytest.raises(ValueError, match=r"Decoding\.noise"):
        Decoding(noise="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Decoding\.slack"):
        Decoding(slack=1.0)
