"""Exact landing at L with three tokenizers that have nothing in common, and what is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from experiment.errors import PrefixError
from experiment.prefix import PrefixBuilder, StepPrompt
from experiment.screenshot import Screenshot
from experiment.trace import Baseline, Step
from experiment.words import load_words

MARKER = "<__media__>"
SPECIAL = r"<\|im_start\|>|<\|im_end\|>"
HEAD = "<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"

# Not one token each in the word-level tokenizer: a long word is a stem and an ending.
LONG = 8


@dataclass
class Fake:
    """A tokenizer with a ChatML template. Ids are given to pieces in the order they turn up."""

    ids: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    template: str = HEAD + "{}" + TAIL
    bos: str = ""

    def pieces(self, text: str) -> list[str]:
        raise NotImplementedError

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        self.calls += 1
        parts = re.split(f"({SPECIAL})", text)
        found = [self.bos] if add_special and self.bos else []
        for part in parts:
            if re.fullmatch(SPECIAL, part):
                found.append(part)
            elif part:
                found += self.pieces(part)
        return [self.ids.setdefault(piece, len(self.ids)) for piece in found]

    def apply_template(self, messages: Sequence[dict[str, object]]) -> str:
        (message,) = messages
        assert message["role"] == "user"
        return self.template.format(message["content"])


class WordLevel(Fake):
    """A word with its space before it is one token; words of LONG letters or more are two."""

    def pieces(self, text: str) -> list[str]:
        found = []
        for piece in re.findall(r" ?[A-Za-z]+|\d|\s+(?= )|\s+|.", text, re.DOTALL):
            letters = len(piece.strip())
            found += [piece[:-3], piece[-3:]] if letters >= LONG else [piece]
        return found


class ByteLevel(Fake):
    """Each byte is a token, the markers aside."""

    def pieces(self, text: str) -> list[str]:
        return [f"<{byte:02x}>" for byte in text.encode()]


class Merging(Fake):
    """All letters without a separator between them are one token, whosever they are."""

    def pieces(self, text: str) -> list[str]:
        return re.findall(r" ?[A-Za-z]+|\n+|.", text, re.DOTALL)


FAKES = (WordLevel, ByteLevel, Merging)
WORDS = load_words()


def builder(tokenizer: Fake, max_depth: int = 200, seed: int = 7) -> PrefixBuilder:
    return PrefixBuilder(tokenizer, WORDS, seed=seed, max_depth=max_depth, media_marker=MARKER)


def step(depth: int, text: str | None = None, tokens: int | None = None, **more: object) -> Step:
    made = Step(
        task_id="t",
        step=0,
        depth=depth,
        depth_unit="tokens",
        new_text=text,
        new_tokens=tokens,
        screenshot=None,
        baseline=Baseline(),
        line=1,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def screenshot(depth: int, text: str | None = None, tokens: int | None = None) -> Step:
    return step(depth, text, tokens, screenshot=Screenshot(None, 320, 200))


def sent(tokenizer: Fake, made: StepPrompt) -> list[int]:
    """The tokens that the server makes of a prompt without images."""
    return [*made.prompt.tokens, *tokenizer.tokenize(made.prompt.text, add_special=False)]


@pytest.mark.parametrize("kind", FAKES)
def test_every_depth_comes_out_exactly_and_runs_are_prefixes_of_each_other(
    kind: type[Fake],
) -> None:
    tokenizer = kind()
    prefixes = builder(tokenizer, max_depth=300)
    head = len(tokenizer.tokenize(HEAD, add_special=True))
    assert prefixes.min_depth == head
    longest = tokenizer.tokenize(prefixes.prefix_text(300), add_special=True)
    before = ""
    for depth in range(head, 301):
        text = prefixes.prefix_text(depth)
        assert text.startswith(HEAD)
        assert text.startswith(before)
        assert tokenizer.tokenize(text, add_special=True) == longest[:depth]
        assert len(longest[:depth]) == depth
        before = text
    assert prefixes.prefix_text(head) == HEAD


def test_a_beginning_of_sequence_token_counts() -> None:
    tokenizer = WordLevel(bos="<s>")
    prefixes = builder(tokenizer)
    assert prefixes.min_depth == 1 + len(WordLevel().tokenize(HEAD, add_special=True))
    for depth in range(prefixes.min_depth, 201):
        made = prefixes.step_prompt(step(depth, tokens=9), None)
        tokens = sent(tokenizer, made)
        assert tokens[0] == tokenizer.ids["<s>"]
        prefix = tokenizer.tokenize(prefixes.prefix_text(depth), add_special=True)
        assert len(prefix) == depth
        assert tokens[:depth] == prefix


@pytest.mark.parametrize("kind", FAKES)
def test_a_run_for_a_smaller_maximum_is_the_beginning_of_a_longer_one(kind: type[Fake]) -> None:
    small, large = builder(kind(), max_depth=60), builder(kind(), max_depth=900)
    assert large.prefix_text(900).startswith(small.prefix_text(60))


@pytest.mark.parametrize("kind", FAKES)
def test_the_seed_decides_the_run(kind: type[Fake]) -> None:
    runs = {builder(kind(), seed=seed).prefix_text(200) for seed in (1, 1, 2)}
    assert len(runs) == 2


@pytest.mark.parametrize(("kind", "distinct"), [(WordLevel, 100), (Merging, 100), (ByteLevel, 30)])
def test_no_word_makes_the_run(kind: type[Fake], distinct: int) -> None:
    tokenizer = kind()
    prefixes = builder(tokenizer, max_depth=500)
    tokens = tokenizer.tokenize(prefixes.prefix_text(500), add_special=True)[prefixes.min_depth :]
    counts = Counter(tokens)
    assert len(counts) > distinct
    assert counts.most_common(1)[0][1] < len(tokens) / 10


def test_words_of_two_tokens_are_left_out() -> None:
    long = [word for word in WORDS if len(word) >= LONG]
    assert long
    run = builder(WordLevel(), max_depth=2000).prefix_text(2000).removeprefix(HEAD).split()
    assert len(run) == 2000 - 3
    assert not set(run) & set(long)
    # Nearly all that can be used are used: finding them by halving loses none.
    assert len(set(run)) > 0.9 * (len(WORDS) - len(long))


def test_a_lone_usable_word_is_not_repeated_but_letters_are_taken() -> None:
    tokenizer = WordLevel()
    words = ["cat", *(word for word in WORDS if len(word) >= LONG)]
    prefixes = PrefixBuilder(tokenizer, words, seed=1, max_depth=400, media_marker=MARKER)
    run = prefixes.prefix_text(400).removeprefix(HEAD).split()
    assert "cat" not in run
    assert len(set(run)) > 20


def test_finding_the_placeholders_takes_one_request_if_all_are_usable() -> None:
    all_usable, some_usable = Merging(), WordLevel()
    builder(all_usable)
    builder(some_usable)
    assert all_usable.calls < 8 < some_usable.calls


class Pairs(WordLevel):
    """Letters stand alone, a space as well: no unit of any family is one token, digits neither."""

    def pieces(self, text: str) -> list[str]:
        return [piece for char in text for piece in (char, "'")]


def test_a_tokenizer_without_placeholders_of_one_token_is_refused() -> None:
    with pytest.raises(PrefixError, match="no placeholder word or letter adds exactly one token"):
        builder(Pairs())


class Balancing(WordLevel):
    """A word of two tokens beside two words of one: their sum is what three good words make."""

    def pieces(self, text: str) -> list[str]:
        return re.findall(r" one won| t|wo| [a-z]+|[a-z]+|\n", text)


def test_errors_that_cancel_out_in_the_sum_do_not_go_unseen() -> None:
    def every_depth() -> None:
        words = ["one", "won", "two"]
        prefixes = PrefixBuilder(Balancing(), words, seed=1, max_depth=100, media_marker=MARKER)
        for depth in range(prefixes.min_depth, 101):
            prefixes.prefix_text(depth)

    with pytest.raises(PrefixError, match=r"placeholders .* made \d+ tokens"):
        every_depth()


class PairMerging(WordLevel):
    """Two equal words in a row are one token: each word alone passes, a random run does not."""

    def pieces(self, text: str) -> list[str]:
        found: list[str] = []
        for piece in super().pieces(text):
            if found and found[-1] == piece:
                found[-1] += piece
            else:
                found.append(piece)
        return found


def test_a_run_that_does_not_come_out_is_refused_and_never_used() -> None:
    with pytest.raises(PrefixError, match=r"placeholders after .* made \d+ tokens"):
        builder(PairMerging(), max_depth=5000)


class EndSplitting(WordLevel):
    """At the very end of a text, a word of five letters is two tokens."""

    def pieces(self, text: str) -> list[str]:
        found = super().pieces(text)
        last = found[-1]
        return [*found[:-1], last[:2], last[2:]] if len(last.strip()) == 5 else found


def test_a_depth_at_which_the_run_does_not_come_out_is_refused() -> None:
    prefixes = builder(EndSplitting(), max_depth=60)
    refused = 0
    for depth in range(prefixes.min_depth, 61):
        try:
            text = prefixes.prefix_text(depth)
        except PrefixError as error:
            assert error.what == f"the placeholders for depth {depth} made {depth + 1} tokens"  # noqa: PT017
            refused += 1
        else:
            assert len(WordLevel().tokenize(text, add_special=True)) == depth
            assert len(text.split()[-1]) != 5
    assert 0 < refused < 30


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("short", [1, 2])
def test_a_depth_within_the_head_is_refused_in_a_sentence(kind: type[Fake], short: int) -> None:
    prefixes = builder(kind())
    depth, head = prefixes.min_depth - short, prefixes.min_depth
    sentence = f"depth {depth} is too small: the chat template's head alone has {head} tokens"
    for ask in (step(depth, tokens=5), step(depth, "some text")):
        with pytest.raises(PrefixError) as caught:
            prefixes.step_prompt(ask, None)
        assert caught.value.what == sentence
    with pytest.raises(PrefixError) as caught:
        prefixes.step_prompt(screenshot(depth), b"png")
    assert caught.value.what == sentence


@pytest.mark.parametrize("kind", FAKES)
def test_with_nothing_cached_the_head_is_new_too(kind: type[Fake]) -> None:
    tokenizer = kind()
    prefixes = builder(tokenizer)
    head = tuple(tokenizer.tokenize(HEAD, add_special=True))
    made = prefixes.step_prompt(step(0, "some text"), None)
    assert (made.depth, made.prompt.tokens, made.prompt.text) == (0, head, "some text" + TAIL)
    seen = prefixes.step_prompt(screenshot(0), b"png")
    assert (seen.depth, seen.prompt.tokens, seen.prompt.images) == (0, (), (b"png",))
    assert seen.prompt.text.startswith(HEAD + MARKER)


def test_a_trace_whose_depths_all_lie_within_the_head_is_refused_step_by_step() -> None:
    prefixes = builder(WordLevel(), max_depth=1)
    with pytest.raises(PrefixError, match="depth 1 is too small"):
        prefixes.step_prompt(step(1, tokens=4), None)
    assert prefixes.prefix_text(prefixes.min_depth) == HEAD


def test_a_depth_beyond_what_was_prepared_is_refused() -> None:
    with pytest.raises(PrefixError, match="depth 201 is beyond the 200 tokens prepared"):
        builder(WordLevel()).prefix_text(201)


@pytest.mark.parametrize("kind", FAKES)
@pytest.mark.parametrize("text", ["text", " text", "text and more", "\n\nlist", ".", "x" * 40, "é"])
def test_text_never_merges_into_the_prefix(kind: type[Fake], text: str) -> None:
    tokenizer = kind()
    prefixes = builder(tokenizer, max_depth=60)
    tail = len(tokenizer.tokenize(TAIL, add_special=False))
    for depth in range(prefixes.min_depth, 61):
        made = prefixes.step_prompt(step(depth, text), None)
        assert made.depth == depth
        assert made.prompt.images == ()
        assert made.prompt.text.endswith(text + TAIL)
        tokens = sent(tokenizer, made)
        prefix = tokenizer.tokenize(prefixes.prefix_text(depth), add_special=True)
        assert tokens[:depth] == prefix
        assert len(tokens) == depth + made.new_text_tokens + tail
        assert made.new_text_tokens > 0


def test_a_tokenizer_that_merges_everything_cannot_merge_text_into_ids() -> None:
    tokenizer = Merging()
    prefixes = builder(tokenizer)
    glued = prefixes.prefix_text(50) + "text"
    assert len(tokenizer.tokenize(glued, add_special=True)) == 50  # nothing new: all merged
    made = prefixes.step_prompt(step(50, "text"), None)
    assert made.prompt.as_json() == [*made.prompt.tokens, "text" + TAIL]
    assert len(made.prompt.tokens) == 50
    assert made.new_text_tokens == 1


class Swallowing(WordLevel):
    """A full stop at the end of a text belongs to the marker behind it."""

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        return super().tokenize(text.replace("." + TAIL, TAIL), add_special=add_special)


def test_text_that_cannot_be_kept_apart_is_refused() -> None:
    prefixes = builder(Swallowing())
    with pytest.raises(PrefixError, match="merges with the chat template's tail: no token is new"):
        prefixes.step_prompt(step(50, "."), None)


@pytest.mark.parametrize("kind", FAKES)
def test_asked_for_new_tokens_come_out_exactly(kind: type[Fake]) -> None:
    tokenizer = kind()
    prefixes = builder(tokenizer, max_depth=100)
    tail = len(tokenizer.tokenize(TAIL, add_special=False))
    for depth in (prefixes.min_depth, prefixes.min_depth + 1, 50, 100):
        for wanted in (1, 2, 3, 64, 500):
            made = prefixes.step_prompt(step(depth, tokens=wanted), None)
            assert made.new_text_tokens == wanted
            assert len(sent(tokenizer, made)) == depth + wanted + tail


@pytest.mark.parametrize("kind", FAKES)
def test_beside_an_image_too(kind: type[Fake]) -> None:
    tokenizer = kind()
    prefixes = builder(tokenizer, max_depth=100)
    tail = tokenizer.tokenize(TAIL, add_special=False)
    for wanted in (1, 2, 77):
        made = prefixes.step_prompt(screenshot(40, tokens=wanted), b"png")
        assert made.prompt.images == (b"png",)
        assert made.new_text_tokens == wanted
        before, marker, after = made.prompt.text.partition(MARKER)
        assert marker
        assert MARKER not in after
        assert before == prefixes.prefix_text(40)
        # The server tokenises what stands before and after an image apart from each other.
        assert len(tokenizer.tokenize(before, add_special=True)) == 40
        tokens = tokenizer.tokenize(after, add_special=False)
        assert len(tokens) == wanted + len(tail)
        assert tokens[wanted:] == tail


def test_new_words_differ_from_step_to_step_and_stay_the_same_from_run_to_run() -> None:
    def new(number: int = 0, task_id: str = "t") -> str:
        asked = replace(step(20, tokens=30), step=number, task_id=task_id)
        return builder(WordLevel()).step_prompt(asked, None).prompt.text

    texts = [new(), new(1), new(task_id="u")]
    assert len(set(texts)) == 3
    assert texts[0] == new()


def test_an_image_alone_has_no_text_tokens() -> None:
    prefixes = builder(WordLevel())
    made = prefixes.step_prompt(screenshot(30), b"png")
    assert made.prompt.text == prefixes.prefix_text(30) + MARKER + TAIL
    assert made.new_text_tokens == 0


def test_an_image_with_text() -> None:
    tokenizer = WordLevel()
    prefixes = builder(tokenizer)
    made = prefixes.step_prompt(screenshot(30, "click the button"), b"png")
    assert made.prompt.text == prefixes.prefix_text(30) + MARKER + "click the button" + TAIL
    assert made.new_text_tokens == 3


class TailMerging(WordLevel):
    """The word before the end marker and the marker are one token."""

    def tokenize(self, text: str, *, add_special: bool) -> list[int]:
        return super().tokenize(
            re.sub(r" [A-Za-z]+<\|im_end\|>", "\0", text), add_special=add_special
        )


@pytest.mark.parametrize("ask", [step(30, tokens=6), screenshot(30, tokens=6)])
def test_new_tokens_that_do_not_come_out_are_refused(ask: Step) -> None:
    with pytest.raises(PrefixError, match="6 new text tokens came out as 5"):
        builder(TailMerging()).step_prompt(ask, b"png" if ask.screenshot else None)


@pytest.mark.parametrize(
    "template",
    ["<|im_start|>user\n<|im_end|>\n", "{0}{0}", HEAD + "{0}" + TAIL + "Repeat: {0}", ""],
)
def test_a_template_that_drops_or_doubles_the_users_text_is_refused(template: str) -> None:
    with pytest.raises(PrefixError, match="does not show the user's text exactly once"):
        builder(WordLevel(template=template))


@pytest.mark.parametrize("template", ["{0}", "{0}" + TAIL, HEAD + "{0}", " {0} "])
def test_a_template_may_lack_head_or_tail(template: str) -> None:
    tokenizer = WordLevel(template=template)
    prefixes = builder(tokenizer)
    for depth in range(prefixes.min_depth, 201):
        made = prefixes.step_prompt(step(max(depth, 1), tokens=3), None)
        tail = tokenizer.tokenize(template.partition("{0}")[2], add_special=False)
        assert len(sent(tokenizer, made)) == max(depth, 1) + 3 + len(tail)
