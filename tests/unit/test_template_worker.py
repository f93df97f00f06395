"""Templates that misbehave fail alone, within their limits, and learn nothing."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.template_worker import (
    TemplateBusyError,
    TemplateError,
    TemplateRefusedError,
    TemplateWorkers,
)


@pytest.fixture(scope="module")
def workers() -> Iterator[TemplateWorkers]:
    workers = TemplateWorkers(limit_seconds=1.0)
    yield workers
    workers.close()


BROKEN = {
    "syntax": "{% if",
    "missing": "{{ messages[7].role.upper() }}",
    "type": "{{ 1 + 'a' }}",
    "endless": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "huge number": "{{ 2 ** (2 ** 40) }}",
    "huge text": "{{ 'x' * (10 ** 9) }}{{ 'y' * (10 ** 9) }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "mutation": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("template", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_template_fails_alone(workers: TemplateWorkers, template: str) -> None:
    begin = time.monotonic()
    with pytest.raises(TemplateError) as caught:
        _ = workers.render(template, {"messages": [{"role": "user", "content": "my secret"}]})
    assert not isinstance(caught.value, TemplateRefusedError)
    assert "secret" not in str(caught.value)
    assert time.monotonic() - begin < 10
    assert workers.render("{{ messages | length }}", {"messages": [1, 2]}) == "2"


def test_a_template_may_refuse_in_its_own_words(workers: TemplateWorkers) -> None:
    with pytest.raises(TemplateRefusedError, match="Roles must alternate"):
        _ = workers.render("{{ raise_exception('Roles must alternate') }}", {})
    with pytest.raises(TemplateRefusedError) as caught:
        _ = workers.render("{{ raise_exception('Not: ' + text) }}", {"text": "my secret"})
    assert "secret" not in str(caught.value)


def test_what_templates_rely_on(workers: TemplateWorkers) -> None:
    template = (
        "{% set ns = namespace(n=0) %}\n"
        "{% for m in messages %}\n"
        "    {% if loop.index > 2 %}{% break %}{% endif %}\n"
        "    {% set ns.n = ns.n + m %}\n"
        "{% endfor %}\n"
        "{{ ns.n }}{% generation %}-{% endgeneration %}{{ {'b': '<é>', 'a': 1} | tojson }}"
    )
    assert workers.render(template, {"messages": [1, 2, 4]}) == '3-{"b": "<é>", "a": 1}'
    year = workers.render("{{ strftime_now('%Y') }}", {})
    assert abs(int(year) - time.localtime().tm_year) <= 1


def test_large_prompts_and_answers_pass_the_pipes(workers: TemplateWorkers) -> None:
    text = "é" * 1_000_000
    assert workers.render("{{ text }}", {"text": text}) == text


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_child_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXNET_SECRET", "my secret")
    workers = TemplateWorkers(workers=1)
    assert workers.render("a", {}) == "a"
    (child,) = workers.pids()
    assert Path(f"/proc/{child}/environ").read_bytes() == b""
    limits = Path(f"/proc/{child}/limits").read_text()
    assert re.search(r"Max file size +0 +0 ", limits)
    assert re.search(rf"Max address space +{512 << 20} ", limits)
    workers.close()


def test_a_killed_child_is_replaced() -> None:
    workers = TemplateWorkers(workers=1)
    assert workers.render("a", {}) == "a"
    (child,) = workers.pids()
    os.kill(child, signal.SIGKILL)
    with pytest.raises(TemplateError):
        _ = workers.render("a", {})
    assert workers.render("a", {}) == "a"
    workers.close()
    assert workers.pids() == []
    with pytest.raises(TemplateError):
        _ = workers.render("a", {})


def test_a_stopped_child_runs_into_the_limit() -> None:
    workers = TemplateWorkers(workers=1, limit_seconds=0.3)
    assert workers.render("a", {}) == "a"
    (child,) = workers.pids()
    os.kill(child, signal.SIGSTOP)
    with pytest.raises(TemplateError, match="time limit"):
        _ = workers.render("{{ text }}", {"text": "x" * 1_000_000})
    assert workers.render("a", {}) == "a"
    workers.close()


def test_waiting_for_a_worker_has_an_end() -> None:
    workers = TemplateWorkers(workers=1, limit_seconds=0.3)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    failures: list[type[BaseException]] = []

    def run() -> None:
        try:
            _ = workers.render(endless, {})
        except TemplateError as error:
            failures.append(type(error))

    threads = [threading.Thread(target=run) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    workers.close()
    assert len(failures) == 12
    assert TemplateBusyError in failures
    assert TemplateError in failures
