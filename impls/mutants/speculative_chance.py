"""Faults of a verification's own noise, and of its conduct: seeds, counters, memory, refusals.

Noise is not given here, so what samples show is all there is to see. Ids such as S32 name a report
in the project's catalogue of public faults of speculative decoding.
"""

from dataclasses import replace
from functools import partial

from kernelassay.impls.contract import Capabilities
from kernelassay.impls.mutants.speculative import (
    ABOVE,
    BASE,
    DRAWN,
    EXCESS,
    RESIDUAL,
    WEIGHTS,
    drawing,
)
from kernelassay.impls.variants import Variant

_mutant = partial(Variant, base=BASE)
_seeded = partial(_mutant, capabilities=partial(drawing, noise="seeded"))
_global = partial(
    _mutant, capabilities=partial(drawing, noise="global"), law="speculative.independent"
)
_generated = partial(
    _mutant, capabilities=partial(drawing, noise="generators"), law="speculative.own_generators"
)
_FIRST = ("speculative.first_token",)
_LENGTH = ("speculative.commit_length",)
_EXACT = ("speculative.decisions",)

DRAWS_OWN = "draws = (~greedy.bool().cpu() & (budget.cpu() > 0)).tolist()"
OWN = "made.uniform_(generator=generator)"
U = "u = philox_uniforms(call.seeds[:, None], 2 * i[:K])"
V = "v = philox_uniforms(call.seeds[:, None], 2 * i + 1)"
WORD = "(words[0] >> 8).float() * 2.0**-24"
GIVEN = (
    "        assert call.accept is not None\n"
    "        assert call.draw is not None\n"
    "        u, v = call.accept.flatten()[n], call.draw.flatten()[row]\n"
)
CHECKED = "check_verify(call, self.capabilities)"
REFUSED = "refuse_verify(self.name, self.capabilities, call)"


def _of(part: str, seeds: str) -> tuple[str, str]:
    """The edit of *part* that takes these seeds."""
    return part, part.replace("call.seeds[:, None]", seeds)


def declining(base: Capabilities, *features: str) -> Capabilities:
    """*base* that declines these features."""
    return replace(
        base, supports=base.supports - {*features}, declines=base.declines | {*features}
    )


REUSED = (
    _seeded(
        name="verify_seeded_acceptance_uniform_is_0",
        edits=((U, f"{U} * 0.0"),),
        report="S14",
        hides="All that is emitted is possible under p, and speed is best.",
        law="speculative.commit_length",
        missed_by=("speculative.independent",),
    ),
    _seeded(
        name="verify_seeded_draw_reuses_the_acceptance_uniform",
        edits=((V, V.replace("2 * i + 1", "torch.where(i < k, 2 * i, 2 * i + 1)")),),
        report="S29",
        hides="Total variation of the first token is some hundredths.",
        law="speculative.branches",
        missed_by=_LENGTH,
    ),
    _seeded(
        name="verify_seeded_one_acceptance_uniform",
        edits=((U, U.replace("2 * i[:K]", "0 * i[:K]")),),
        report="S29",
        hides="Each draft alone is accepted as often as it should be.",
        law="speculative.rounds",
        missed_by=(*_FIRST, "speculative.branches"),
        level="pr",
    ),
    _seeded(
        name="verify_seeded_bonus_reuses_the_last_acceptance_uniform",
        edits=((V, V.replace("2 * i + 1", "2 * i - 2")),),
        report="S29",
        hides="The first token is right, and so is the number of drafts.",
        law="speculative.positions",
        missed_by=(*_FIRST, *_LENGTH),
    ),
)

SHARED = (
    _seeded(
        name="verify_seeded_ignores_its_seeds",
        edits=(_of(U, "torch.zeros_like(call.seeds)[:, None]"), _of(V, "0 * call.seeds[:, None]")),
        report="S130",
        hides="One call of one request has a right law over its drafts.",
        law="speculative.independent",
    ),
    _seeded(
        name="verify_seeded_one_seed_for_a_batch",
        edits=(_of(V, "call.seeds[:1, None].expand(R, 1)"),),
        report="S32",
        hides="Every request has the right law, and every call another token.",
        law="speculative.independent",
        missed_by=_LENGTH,
    ),
    _seeded(
        name="verify_seeded_one_acceptance_seed_for_a_batch",
        edits=(_of(U, "call.seeds[:1, None]"),),
        report="S32",
        hides="Every request has the right law; drafts differ, and so do the tokens.",
        law="speculative.commit_length",
        missed_by=("speculative.independent",),
    ),
    _seeded(
        name="verify_seeded_with_8_bits_of_a_seed",
        edits=(_of(U, "call.seeds[:, None] & 255"), _of(V, "call.seeds[:, None] & 255")),
        report="S32",
        hides="Two requests rarely have the same seed of 256.",
        law="speculative.first_token",
        missed_by=("speculative.independent",),
        level="pr",
    ),
    _seeded(
        name="verify_seeded_uniforms_of_3_bits",
        edits=((WORD, "(words[0] >> 29).float() * 2.0**-3"),),
        report="S34",
        hides="Tokens of a probability that is a multiple of 1/8 come as often as they should.",
        law="speculative.rounds",
        missed_by=("speculative.independent",),
        level="pr",
    ),
    _seeded(
        name="verify_seeded_by_place_in_the_batch",
        edits=(_of(V, "(call.seeds[:, None] + r)"),),
        report="S130",
        hides="The law is right, and the same batch gives the same tokens.",
        law="speculative.requests_apart",
        missed_by=("speculative.independent", "speculative.rounds", "speculative.deterministic"),
    ),
    _seeded(
        name="verify_seeded_draws_from_the_default_generator",
        edits=((V, "v = torch.rand(R, K + 1, device=device)"),),
        report="S131",
        hides="The law is right; few tests make the same call twice.",
        law="speculative.deterministic",
        missed_by=("speculative.independent", "speculative.rounds"),
    ),
    _seeded(
        name="verify_seeded_reseeds_the_default_generator",
        edits=((V, f"{V}\n        torch.manual_seed(int(call.seeds.sum()))"),),
        report="S133",
        hides="The call itself is right; what the program draws next is not random any more.",
        law="speculative.default_generator",
        missed_by=("speculative.independent", "speculative.rounds", "speculative.deterministic"),
    ),
    _global(
        name="verify_global_seeds_itself_anew",
        edits=(
            (
                GIVEN,
                "        torch.manual_seed(0)\n"
                "        u, v = (torch.rand(R, x, device=device) for x in (K, K + 1))\n",
            ),
        ),
        report="S32",
        hides="Requests of one call are independent, and each has the right law.",
        missed_by=_FIRST,
    ),
    _global(
        name="verify_global_moves_on_too_little",
        edits=(
            (
                GIVEN,
                "        u, w = (torch.rand(R, K, device=device) for _ in range(2))\n"
                "        used = torch.get_rng_state()\n"
                "        v = torch.cat([torch.rand(R, 1, device=device), w], 1)"
                "; torch.set_rng_state(used)\n",
            ),
        ),
        report="S29",
        hides="Each round is right, and so are the tokens drawn in two: the draw of one call is "
        "the first acceptance uniform of the next.",
        law="speculative.calls_apart",
        missed_by=("speculative.independent", "speculative.rounds"),
    ),
    _seeded(
        name="verify_seeded_draws_with_the_next_seed",
        edits=((V, "v = philox_uniforms(call.seeds[:, None] + 1, 2 * i)"),),
        report="S29",
        hides="Each round is right; a request draws with the acceptance uniform of the next one, "
        "where seeds are numbered.",
        law="speculative.calls_apart",
        missed_by=("speculative.independent", "speculative.rounds"),
    ),
    _global(
        name="verify_global_one_draw_for_a_batch",
        edits=(
            (
                GIVEN,
                "        u = torch.rand(R, K, device=device)\n"
                "        v = torch.rand(1, K + 1, device=device).expand(R, K + 1)\n",
            ),
        ),
        report="S32",
        hides="Every request has the right law, and every call other tokens.",
        missed_by=_LENGTH,
    ),
)

GENERATED = (
    _generated(
        name="verify_generators_of_greedy_requests_move",
        edits=((DRAWS_OWN, "draws = (budget.cpu() > 0).tolist()"),),
        report="S130",
        hides="Tokens are right; a request that turns from greedy to sampled draws others.",
        missed_by=("speculative.requests_apart", "speculative.rounds"),
    ),
    _generated(
        name="verify_generators_move_without_a_budget",
        edits=((DRAWS_OWN, DRAWS_OWN.replace("budget.cpu() > 0", "budget.cpu() >= 0")),),
        report="S130",
        hides="Nothing is emitted, so that no token shows it.",
        missed_by=("speculative.requests_apart", "speculative.rounds"),
    ),
    _generated(
        name="verify_generators_are_copied",
        edits=((OWN, OWN.replace("=generator", "=generator.clone_state()")),),
        report="S32",
        hides="A round is right; the next one has the same noise.",
        missed_by=("speculative.requests_apart", "speculative.rounds"),
    ),
    _generated(
        name="verify_generators_are_those_of_request_0",
        edits=((OWN, OWN.replace("=generator", "=own[0]")),),
        report="S131",
        hides="One request alone is right, and laws of many are.",
        law="speculative.requests_apart",
        missed_by=("speculative.rounds", "speculative.independent"),
    ),
)

WRONG_LAW = (
    _seeded(
        name="verify_seeded_bonus_from_q",
        edits=(
            (
                WEIGHTS,
                f"{WEIGHTS}\n    if q is not None and K:\n"
                "        weights = torch.where((a == k) & (k > 0), "
                "q[n.gather(1, (k.long() - 1).clamp_min(0))[:, 0]].double(), weights)",
            ),
        ),
        report="S04",
        hides="The first token is right, and so is the number of drafts.",
        law="speculative.sequence",
        missed_by=(*_FIRST, *_LENGTH),
    ),
    _seeded(
        name="verify_seeded_resamples_from_p",
        edits=((RESIDUAL, "weights = weights * 1.0"),),
        report="S04",
        hides="Every token that comes is possible under p.",
        law="speculative.branches",
        missed_by=_LENGTH,
    ),
    _seeded(
        name="verify_seeded_softmaxes_the_residual",
        edits=((EXCESS, f"{EXCESS}.softmax(-1)"),),
        report="S01",
        hides="The number of accepted drafts is right.",
        law="speculative.first_token",
        missed_by=_LENGTH,
    ),
    _seeded(
        name="verify_seeded_draws_against_1",
        edits=((ABOVE, "above = sums > v[:, None].double()"),),
        report="S37",
        hides="Right where weights add up to 1: for the bonus, and where everything is rejected.",
        law="speculative.possible",
        missed_by=_LENGTH,
    ),
)

CONDUCT = (
    _mutant(
        name="verify_sums_p_in_place",
        edits=((DRAWN, f"{DRAWN}\n    call.p.copy_(call.p.cumsum(-1))"),),
        report="S50",
        hides="The result is right, and p is not looked at again.",
        law="speculative.memory",
        missed_by=_EXACT,
    ),
    _mutant(
        name="verify_overwrites_the_drafts",
        edits=((DRAWN, f"{DRAWN}\n    call.drafts.clamp_(min=0)"),),
        report="S80",
        hides="Only a skipped draft changes.",
        law="speculative.memory",
        missed_by=(*_EXACT, "speculative.skipped"),
    ),
    _mutant(
        name="verify_samples_of_laws_that_are_none",
        edits=(
            (
                CHECKED,
                "check_verify(call, replace(self.capabilities, sampling=replace("
                "self.capabilities.sampling, bad_laws='undefined')))",
            ),
        ),
        report="S10",
        hides="NaN laws do not occur in tests.",
        law="speculative.bad_laws",
        missed_by=_EXACT,
    ),
    _mutant(
        name="verify_takes_malformed_calls",
        edits=((f"        {CHECKED}\n", ""),),
        report="S86",
        hides="Tests make calls that are well formed.",
        law="speculative.validates",
        missed_by=_EXACT,
    ),
    _mutant(
        name="verify_answers_what_it_declines",
        edits=((f"        {REFUSED}\n", ""), ("if call.stop is not None:", "if False:")),
        report="S64",
        hides="Tests ask for what is supported.",
        law="speculative.declines",
        missed_by=_EXACT,
        capabilities=lambda base: declining(base, "stop"),
    ),
)

MUTANTS = (*REUSED, *SHARED, *GENERATED, *WRONG_LAW, *CONDUCT)
