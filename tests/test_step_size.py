from __future__ import annotations

from experiment.screenshot import Screenshot
from experiment.step_size import Size, Sizes, exactly, learned
from experiment.trace import Baseline, Step


def step(
    text: str | None = None,
    tokens: int | None = None,
    shot: tuple[int, int] | None = None,
    number: int = 0,
) -> Step:
    screenshot = None if shot is None else Screenshot(None, *shot)
    return Step("a", number, 100, "tokens", text, tokens, screenshot, Baseline(), number + 1)


def test_told_tokens_are_exact() -> None:
    size = Sizes().of(step(tokens=119))
    assert size == exactly(119)
    assert size.is_exact
    assert Sizes(tail=5).of(step(tokens=119)) == exactly(124)


def test_a_text_is_bounded_by_its_bytes() -> None:
    assert Sizes().of(step("x" * 80)) == Size(10, 20, 80)
    assert not Sizes().of(step("x" * 80)).is_exact
    # 2 bytes each in UTF-8: 8 of them.
    assert Sizes().of(step("éééé")) == Size(1, 2, 8)
    # Never above the bytes, never below what the lower bound says.
    assert Sizes(bytes_per_token=0.5).of(step("x" * 80)) == Size(10, 80, 80)
    assert Sizes(bytes_per_token=99.0).of(step("x" * 80)) == Size(10, 10, 80)
    assert Sizes().of(step("x")) == Size(1, 1, 1)


def test_an_image_before_the_model_is_known() -> None:
    # 960 x 540 / 32^2 = 506.25; at 28 pixels 35 columns of 20.
    assert Sizes().of(step(shot=(960, 540))) == Size(253, 506, 700)
    assert Sizes().of(step(shot=(32, 32))) == Size(1, 1, 4)


def test_an_image_of_a_size_that_was_measured() -> None:
    sizes = Sizes(tail=5, images={(960, 540): 522, (640, 360): 232})
    assert sizes.of(step(shot=(960, 540), tokens=119)) == exactly(5 + 119 + 522)
    # Another size by the tokens of all pixels: 754 / 748,800 of 320 x 180 = 58.
    assert sizes.of(step(shot=(320, 180))) == Size(5 + 29, 5 + 58, 5 + 84)
    assert Sizes(images={(100, 100): 900}).of(step(shot=(200, 100))) == Size(900, 1800, 1800)


def test_measured_steps_tell_tail_texts_and_images() -> None:
    steps = [
        step("x" * 90, number=0),
        step(tokens=60, number=1),
        step("x" * 30, shot=(960, 540), number=2),
        step("never measured", number=3),
    ]
    counted = {("a", 0): (25, 20), ("a", 1): (65, 60), ("a", 2): (537, 10)}
    sizes = learned(steps, counted)
    assert sizes.tail == 5
    assert sizes.bytes_per_token == 4.0  # 120 bytes, 30 tokens
    assert sizes.images == {(960, 540): 522}


def test_without_a_step_of_text_alone_the_tail_counts_to_the_image() -> None:
    steps = [step(tokens=10, shot=(640, 360))]
    sizes = learned(steps, {("a", 0): (247, 10)})
    assert sizes == Sizes(0, 4.0, {(640, 360): 237})
    assert sizes.of(steps[0]) == exactly(247)


def test_what_was_known_before_holds_where_nothing_is_told() -> None:
    before = Sizes(5, 3.0, {(640, 360): 232})
    assert learned([step("x")], {}, before) == before
