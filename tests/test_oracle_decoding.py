"""The oracle of decode loops against enumeration, plain decoding and its own algebra."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelassay.oracle.decoding import (
    State,
    Task,
    Turn,
    Uniforms,
    after,
    committed,
    drafted,
    greedy_text,
    greedy_turns,
    lengths_law,
    looked_up,
    prefilled,
    runs,
    states,
    text_law,
    verified,
    without_stop,
)
from kernelassay.oracle.speculative import Law, Prefix, normalised

V = 2
MASSES = ((1, 3), (2, 1), (5, 2), (1, 1), (1, 6))


def context(shift: int):
    """A law that depends on every token before."""

    def law(run: Prefix) -> Law:
        at = sum((i + 1) * (x + 1) for i, x in enumerate(run)) + shift
        return normalised(MASSES[at % len(MASSES)])

    return law


TARGET, DRAFT = context(0), context(3)
TASK = Task(prompt=(0,), budget=3, schedule=(2, 0, 1), stop=frozenset({1}), minimum=1)
texts = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


@st.composite
def turns(draw: st.DrawFn) -> tuple[Prefix, list[Turn]]:
    """A prompt and rounds of any outcome."""
    found = []
    for _ in range(draw(st.integers(0, 5))):
        drafts = tuple(draw(st.lists(st.integers(0, 2), max_size=3)))
        a = draw(st.integers(0, len(drafts)))
        tail = draw(st.lists(st.integers(0, 2), min_size=int(a == 0), max_size=1))
        found.append(Turn(drafts, a, drafts[:a] + tuple(tail)))
    return draw(texts), found


@given(turns())
def test_a_run_is_its_tokens_fed_one_by_one(made: tuple[Prefix, list[Turn]]) -> None:
    """The target cache holds what it would hold had each token been a round of its own."""
    prompt, rounds = made
    end = states(prompt, rounds)[-1]
    single = [Turn((), 0, (y,)) for turn in rounds for y in turn.emitted]
    assert states(prompt, single)[-1].target == end.target == len(end.text) - 1
    assert states(prompt, single)[-1].text == end.text


@given(turns())
def test_caches_hold_a_prefix_of_the_text(made: tuple[Prefix, list[Turn]]) -> None:
    """Nothing rejected stays; the draft cache lacks the last draft of a fully accepted round."""
    prompt, rounds = made
    for turn, state in zip(rounds, states(prompt, rounds)[1:], strict=True):
        full = 0 < len(turn.drafts) == turn.accepted < len(turn.emitted)
        assert state.draft == len(state.text) - 1 - full
        assert state.proposed == ()
        assert state.pending == state.text[-1:]


@given(turns())
def test_caches_are_what_a_cache_of_tokens_holds(made: tuple[Prefix, list[Turn]]) -> None:
    """The lengths are those of lists that tokens are put into and cut from."""
    prompt, rounds = made
    target, draft, text = [*prompt[:-1]], [*prompt[:-1]], [*prompt]
    for turn, state in zip(rounds, states(prompt, rounds)[1:], strict=True):
        draft += [*text[len(draft) :], *turn.drafts[:-1]]
        target += [*text[len(target) :], *turn.drafts]
        text += turn.emitted
        for cache in (target, draft):
            while cache != text[: len(cache)] or len(cache) >= len(text):
                cache.pop()
        assert (len(target), len(draft)) == (state.target, state.draft)


def test_steps_in_between() -> None:
    """Drafts are seen by the draft model but for the last, by the target all."""
    state = drafted(prefilled((5, 6)), (7, 8))
    assert (state.draft, verified(state).target) == (3, 4)
    assert after(prefilled((5, 6)), Turn((7, 8), 1, (7, 9))) == State((5, 6, 7, 9), 3, 3)


def test_malformed_steps_are_refused() -> None:
    """An empty prompt has no pending token; a turn emits its accepted drafts and one token."""
    with pytest.raises(ValueError, match="empty prompt"):
        prefilled(())
    with pytest.raises(ValueError, match="were proposed"):
        committed(drafted(prefilled((1,)), (2,)), Turn((2,), 1, (3,)))
    with pytest.raises(ValueError, match="were proposed"):
        committed(drafted(prefilled((1,)), (2,)), Turn((2,), 0, (3, 4)))


@given(texts, st.integers(0, 3), st.integers(1, 3))
def test_looked_up_is_the_definition(text: Prefix, k: int, longest: int) -> None:
    """All occurrences before the end of the longest suffix that has one."""
    wanted: dict[str, Prefix] = {"latest": (), "earliest": ()}
    for n in range(1, min(longest, len(text) - 1) + 1):
        found = [
            text[j + n : j + n + k]
            for j in range(len(text) - n)
            if text[j : j + n] == text[len(text) - n :]
        ]
        if found:
            wanted = {"latest": found[-1], "earliest": found[0]}
    assert looked_up(text, k, longest) == wanted["latest"]
    assert looked_up(text, k, longest, "earliest") == wanted["earliest"]


def brute_text_law(task: Task) -> dict[Prefix, Fraction]:
    """Every text with the product of its tokens' probabilities."""
    law: dict[Prefix, Fraction] = {}
    for n in range(task.budget + 1):
        for text in product(range(V), repeat=n):
            inner = [task.ended(text[:i]) for i in range(n)]
            if any(inner) or not task.ended(text):
                continue
            mass = Fraction(1)
            for i, y in enumerate(text):
                mass *= without_stop(TARGET(text[:i]), task, i)[y]
            if mass:
                law[text] = mass
    return law


def test_text_law_is_the_product_of_its_rows() -> None:
    """With a stop token, a minimum and a budget; its sum is 1."""
    law = text_law(TASK, TARGET)
    assert law == brute_text_law(TASK)
    assert sum(law.values()) == 1


class Forks:
    """Reads numbers of a depth-first walk over all decisions, each with its share of [0, 1)."""

    def __init__(self) -> None:
        self.path: list[int] = []
        self.at = 0
        self.mass = Fraction(1)
        self.sizes: list[int] = []

    def choose(self, masses: list[Fraction]) -> int:
        """The decision of this walk among those of positive mass."""
        some = [i for i, w in enumerate(masses) if w]
        if self.at == len(self.path):
            self.path.append(0)
        if self.at == len(self.sizes):
            self.sizes.append(len(some))
        chosen = some[self.path[self.at]]
        self.at += 1
        self.mass *= masses[chosen]
        return chosen

    def advance(self) -> bool:
        """Whether there is another walk, and begins it."""
        while self.path and self.path[-1] + 1 == self.sizes[-1]:
            self.path.pop()
            self.sizes.pop()
        self.at, self.mass = 0, Fraction(1)
        if self.path:
            self.path[-1] += 1
        return bool(self.path)


def loop(task: Task, forks: Forks, lookup: bool) -> list[Prefix]:
    """A decode loop written as one writes it, its chance from *forks*: tokens of each round."""
    text, rounds = Prefix(), list[Prefix]()
    while not task.ended(text):
        k, drafts, made = task.drafts(len(rounds), len(text)), list[int](), list[int]()
        if lookup:
            drafts = [*looked_up(task.prompt + text, k, 2)]
        for _ in range(0 if lookup else k):
            drafts.append(forks.choose([*DRAFT(text + tuple(drafts))]))
        for i in range(len(drafts) + 1):
            p = without_stop(TARGET(text + tuple(made)), task, len(text) + len(made))
            if i == len(drafts):
                made.append(forks.choose([*p]))
                break
            q = DRAFT(text + tuple(made))
            if lookup:
                q = tuple(Fraction(y == drafts[i]) for y in range(V))
            accept = min(Fraction(1), p[drafts[i]] / q[drafts[i]])
            if forks.choose([accept, 1 - accept]) == 1:
                rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
                made.append(forks.choose([w / sum(rest) for w in rest]))
                break
            made.append(drafts[i])
            if task.ended(text + tuple(made)):
                break
        rounds.append(tuple(made))
        text += tuple(made)
    return rounds


@pytest.mark.parametrize("lookup", [False, True])
@pytest.mark.parametrize(
    "task",
    [
        TASK,
        Task(prompt=(0, 1, 0), budget=3, schedule=(2,), trimmed=True),
        Task(prompt=(1, 0), budget=3, schedule=(1, 0), stop=frozenset({0}), minimum=2),
    ],
)
def test_a_loop_follows_both_laws(task: Task, lookup: bool) -> None:
    """Texts and lengths of rounds, by walking through every decision of a loop."""
    forks, texts_seen = Forks(), dict[Prefix, Fraction]()
    lengths = dict[Prefix, Fraction]()
    while True:
        rounds = loop(task, forks, lookup)
        text = tuple(y for made in rounds for y in made)
        texts_seen[text] = texts_seen.get(text, Fraction(0)) + forks.mass
        length = tuple(map(len, rounds))
        lengths[length] = lengths.get(length, Fraction(0)) + forks.mass
        if not forks.advance():
            break
    found = (lambda run, k: looked_up(task.prompt + run, k, 2)) if lookup else None
    assert texts_seen == text_law(task, TARGET)
    assert lengths == lengths_law(task, TARGET, DRAFT, found)


@settings(max_examples=60)
@given(st.data())
def test_runs_decide_as_a_loop_does(data: st.DataObject) -> None:
    """Under uniforms the rounds are those of a loop that compares them one after the other."""
    unit = st.integers(0, 2**24 - 1).map(lambda i: Fraction(i, 2**24))
    rows = [[data.draw(unit) for _ in range(2)] for _ in range(9)]
    noise = Uniforms(rows[:3], rows[3:6], [[*row, row[0]] for row in rows[6:]])
    (made,) = runs(TASK, TARGET, DRAFT, noise)

    def first(law: Law, u: Fraction) -> int:
        return next(y for y in range(V) if sum(law[: y + 1]) > u)

    text = Prefix()
    for t, turn in enumerate(made):
        k = TASK.drafts(t, len(text))
        drafts = Prefix()
        for i in range(k):
            drafts = (*drafts, first(DRAFT(text + drafts), noise.draft[t][i]))
        assert turn.drafts == drafts
        for i, y in enumerate(turn.emitted):
            p = without_stop(TARGET(text), TASK, len(text))
            q = DRAFT(text) if i < k else None
            taken = q is not None and noise.accept[t][i] * q[drafts[i]] < p[drafts[i]]
            assert taken == (i < turn.accepted)
            if not taken:
                rest = p if q is None else [max(a - b, 0) for a, b in zip(p, q, strict=True)]
                assert y == first(normalised([*rest]), noise.draw[t][i])
            text = (*text, y)
    assert TASK.ended(text)


def test_slack_lets_either_neighbour_be_right() -> None:
    """A uniform on a breakpoint has two right runs, one a little away from it has one."""
    task = Task(prompt=(0,), budget=1)
    edge = TARGET(())[0]
    for u, many in ((edge, 2), (edge + Fraction(1, 100), 1)):
        noise = Uniforms([[]], [[]], [[u]])
        assert len(runs(task, TARGET, DRAFT, noise, Fraction(1, 2**20))) == many


def test_greedy_rounds_emit_the_greedy_text() -> None:
    """Whatever is drafted; the lead is the least difference of the two likeliest."""
    text, lead = greedy_text(TASK, TARGET)
    for lookup in (None, lambda run, k: looked_up((0, *run), k, 2)):
        made = greedy_turns(TASK, TARGET, DRAFT, lookup)
        assert tuple(y for turn in made for y in turn.emitted) == text
    leads = []
    for i in range(len(text)):
        a, b = sorted(without_stop(TARGET(text[:i]), TASK, i))
        leads.append(b - a)
    assert lead == min(leads)
