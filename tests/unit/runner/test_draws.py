"""Where draws come from."""

from __future__ import annotations

from node_agent.runner.draws import draw_words


def test_draws_are_pinned() -> None:
    # Two builds that disagree here would resume each other's seeded answers with other tokens.
    assert draw_words(0, 0) == (3756908995, 2208345775)
    assert draw_words(2**63 - 1, 4096) == (2150750932, 512747866)


def test_every_seed_and_position_has_its_own_draw() -> None:
    draws = {draw_words(seed, position) for seed in range(200) for position in range(200)}
    assert len(draws) == 200 * 200


def test_seed_and_position_are_not_interchangeable() -> None:
    assert draw_words(1, 2) != draw_words(2, 1)


def test_words_are_32_bit_and_evenly_spread() -> None:
    words = [word for position in range(5000) for word in draw_words(7, position)]
    assert all(0 <= word < 2**32 for word in words)
    for bit in range(32):
        ones = sum(word >> bit & 1 for word in words)
        # Five standard deviations of a fair coin tossed 10,000 times.
        assert abs(ones - 5000) < 250
