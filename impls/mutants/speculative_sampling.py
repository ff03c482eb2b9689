"""Faults of samplers of one token, and samplers that only look wrong.

Any such sampler is a verification that accepts a draft where it equals the token drawn, so that
laws of what is emitted judge it. Ids such as S46 name a report in the project's catalogue of
public faults.
"""

from functools import partial

from kernelassay.impls.mutants.speculative import drawing
from kernelassay.impls.variants import Variant

BASE = "kernelassay.impls.torch_sampling"
_control = partial(Variant, base=BASE)
_mutant = partial(Variant, base=BASE, law="speculative.first_token")
_FIRST, _POSSIBLE = ("speculative.first_token",), ("speculative.possible",)

ADAPTER = 'adapter = _adapter("torch_sampling", _whole)'
KTH = "given.top_k[:, None].long() - 1"
BEFORE = "before = x.double().cumsum(1) - x"
LEAST = "least = given.min_p[:, None] * given.x.amax(1, keepdim=True)"
SEEDS = "assert seeds is not None"
ROW = "row = torch.arange(len(kept), device=kept.device)"
U = "u = philox_uniforms(seeds[:1], row)[:, None].double()"
DEFAULT = "u = torch.rand(len(kept), 1, device=kept.device).double()"
SUMS = "sums = kept.double().cumsum(1)"
FOUND = "return (above & (kept > 0)).int().argmax(1)"


def _offered(kind: str) -> tuple[str, str]:
    """The edit that makes the sampler of this truncation the adapter."""
    return ADAPTER, f"adapter = {kind}"


TRUNCATION = (
    _mutant(
        name="sampling_top_k_keeps_one_less",
        edits=(_offered("top_k"), (KTH, f"({KTH} - 1).clamp_min(0)")),
        report="S46",
        hides="All that comes is among the k likeliest; k = 1 is right.",
        missed_by=_POSSIBLE,
    ),
    _mutant(
        name="sampling_top_k_keeps_one_more",
        edits=(_offered("top_k"), (KTH, "given.top_k[:, None].long()")),
        report="S46",
        hides="What should be gone is unlikely.",
        law="speculative.possible",
    ),
    _mutant(
        name="sampling_top_p_leaves_out_what_crosses",
        edits=(_offered("top_p"), (BEFORE, "before = x.double().cumsum(1)\n    before[:, 0] = 0")),
        report="S46",
        hides="All that comes is among the likeliest, and one token alone is kept.",
        missed_by=_POSSIBLE,
    ),
    _mutant(
        name="sampling_min_p_of_1",
        edits=(_offered("min_p"), (LEAST, "least = given.min_p[:, None]")),
        report="S47",
        hides="Right where the likeliest token has a probability near 1.",
    ),
    _mutant(
        name="sampling_top_k_law_taken_to_add_up_to_1",
        edits=(_offered("top_k"), (FOUND, "return (sums <= u).sum(1)")),
        report="S37",
        hides="Right where nothing was removed; else the index is that after the last token.",
        law="speculative.possible",
    ),
)

LAW = (
    _mutant(
        name="sampling_softmaxes_probabilities",
        edits=(("return p\n", "return p.float().softmax(1)\n"),),
        report="S01",
        hides="Likelier tokens come more often, and greedy ones are right.",
    ),
    _mutant(
        name="sampling_at_twice_the_temperature",
        edits=(("return p\n", "return p.float().sqrt()\n"),),
        report="S46",
        hides="All that comes is possible; nothing changes where likelihoods are equal.",
        missed_by=_POSSIBLE,
    ),
)

NOISE = (
    _mutant(
        name="sampling_one_uniform_for_a_call",
        edits=((ROW, "row = torch.zeros_like(kept[:, 0]).long()"),),
        report="S32",
        hides="Every row has the right law, and every call another token.",
        law="speculative.independent",
        missed_by=_POSSIBLE,
    ),
    _mutant(
        name="sampling_one_uniform_for_two_rows",
        edits=((ROW, f"{ROW} // 2"),),
        report="S32",
        hides="Every row has the right law, and first tokens of requests are independent.",
        law="speculative.sequence",
        missed_by=_FIRST,
    ),
    _mutant(
        name="sampling_ignores_its_seed",
        edits=((U, U.replace("seeds[:1]", "0 * seeds[:1]")),),
        report="S130",
        hides="Rows of a call are independent, and each has the right law.",
        law="speculative.independent",
        missed_by=_FIRST,
    ),
    _mutant(
        name="sampling_draws_from_the_default_generator",
        edits=((U, DEFAULT),),
        report="S131",
        hides="The law is right; few tests make the same call twice.",
        law="speculative.deterministic",
        missed_by=(*_FIRST, "speculative.independent"),
    ),
)

MUTANTS = (*TRUNCATION, *LAW, *NOISE)

CONTROLS = (
    _control(
        name="sampling_whole_laws",
        edits=(),
        report="X1",
        hides="A draft is accepted by chance alone: where it equals a token drawn without it.",
    ),
    _control(
        name="sampling_of_the_k_likeliest",
        edits=(_offered("top_k"),),
        report="S46",
        hides="What is removed leaves a law that does not add up to 1.",
    ),
    _control(
        name="sampling_of_a_share",
        edits=(_offered("top_p"),),
        report="S46",
        hides="The token that crosses the share is kept.",
    ),
    _control(
        name="sampling_above_a_ratio",
        edits=(_offered("min_p"),),
        report="S46",
        hides="The threshold is one of quotients, not of probabilities.",
    ),
    _control(
        name="sampling_from_the_default_generator_as_declared",
        edits=((SEEDS, "assert seeds is None"), (U, DEFAULT)),
        report="S131",
        hides="Where no seed is declared there is none to ignore.",
        capabilities=partial(drawing, noise="global"),
    ),
    _control(
        name="sampling_by_a_race",
        edits=(
            (U, U.replace("row)[:, None]", "row[:, None] * 4096 + torch.arange(kept.shape[1]))")),
            (SUMS, "return (kept / -u.log()).argmax(1)\n    " + SUMS),
        ),
        report="S35",
        hides="A uniform for each token, and no sum: argmax of weight / exponential noise.",
    ),
)
