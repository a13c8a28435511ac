"""Answers and errors in Chinese: every phrase of a dozen questions has an entry of the catalogue, every entry is still a
phrase of the code, lines fit the terminal, and what machines read stays as it is."""

import argparse
import ast
import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unicodedata import east_asian_width

import pytest

import simulation_train_formulaic as command
from pss.command import main
from spec.program.columns import FILLER, wrap
from spec.program.command import LANGUAGE_VARIABLES, in_language
from spec.program.translation import PLACEHOLDER, Catalogue, chinese
from tests.architecture import ROOT
from tests.test_questions_page import BLOCK, heads

CATALOGUE = chinese()
SAYING = ("spec", "profdb", "solver", "workload", "pss")
"""Packages whose phrases the catalogue holds."""
DENSE = "--config 7B_llama2 --world_size 8 --global_batch_size 1Mi"
LLAMA3 = "--config 8B_llama3 --world_size 8 --global_batch_size 512Ki"
ANSWERS = (
    f"search {DENSE} --verbose --why_not tp=8 --compare tp=2 --compare tp=4 --explain rank=1 --max cp=1",
    f"search {DENSE} --cluster h100-sxm --framework megatron --fix cp=1",
    f"price tp=2,pp=2,recompute=full {LLAMA3} --cluster h100-sxm --framework megatron --verbose",
    "price tp=8 --config 70B_llama3 --world_size 8 --global_batch_size 512Ki --cluster h100-sxm",
    "search --config 8x7B_mixtral --world_size 16 --global_batch_size 1Mi --cluster h100-sxm --framework megatron --max cp=1",
    "price tp=1 --config 8B_qwen3 --world_size 8 --global_batch_size 1Mi",
    f"price tp=1 {LLAMA3} --task lora --cluster h100-sxm --framework fsdp",
    "sweep --config 8B_llama3,7B_llama2 --world_size 8,16 --global_batch_size 512Ki --fix cp=1,pp=1,tp=1",
)
REFUSALS = (
    "search --config 70B_llama3 --world_size 8 --global_batch_size 512Ki --cluster h100-sxm --fix cp=1",
    "search --config 405B_llama3 --world_size 8 --global_batch_size 512Ki --cluster a100-sxm-80g --framework fsdp --fix cp=1",
    "search --config llama3-9b --world_size 8 --global_batch_size 1Mi",
    "search --config 8B_llama3 --world_size 8 --global_batch_size 1000",
    "search --config 8B_llama3 --world_size 12 --global_batch_size 1Mi --cluster h100-sxm",
    "search --config 8B_llama3 --world_size 0 --global_batch_size 1Mi",
    "search --config 8B_llama3 --global_batch_size 1Mi",
    f"search {LLAMA3} --framework megatorn",
    f"search {LLAMA3} --cluster h100-sxmm",
    f"search {LLAMA3} --fix tpp=3",
    f"search {LLAMA3} --export_megatron x --framework fsdp",
    f"price tp=3 {LLAMA3}",
    f"price tp=x {LLAMA3}",
    f"price foo=3 {LLAMA3}",
    f"price recompute=foo {LLAMA3}",
    f"price pp=2,schedule=foo {LLAMA3}",
    f"price micro_batch=7 {LLAMA3}",
    f"price tp {LLAMA3}",
    "sweep --config 8B_llama3 --world_size 8,16 --global_batch_size 512Ki --scheduler host",
    "sweep --config 8B_llama3 --world_size 8,16 --global_batch_size 512Ki --scheduler host:1 --jobs 2",
)
# Other models and frameworks on the same way.
BY_NIGHT = (ANSWERS[1], *ANSWERS[4:6], ANSWERS[7], REFUSALS[1])
ENGLISH = frozenset(
    re.findall(
        r"\w+",
        """MFU GPU GiB MiB TFLOP TGS NCCL ZeRO CUDA PyTorch DualPipe PaLM None token rank logits nccl mfu
measured extrapolated transferred modelled derived calibrated
mtp msp fsp isp ulysses megatron internevo fsdp deepspeed nothing full none selective moe act layernorm
pss search price profile torchrun help value or time
Dask scheduler HOST tls""",
    )
)
"""Words that an engineer reads in English: units, origins (docs/zh/glossary.md), strategies, frameworks, parts of layers,
commands."""
KEPT = re.compile(
    r"""^(?:layer|forward|.*\d\ x\ .*|batch\ \d.*)$                        # operations and their shapes
    | (?:应为|可选|键为|如)\ .*                                             # names that are listed
    | \b(?:mtp|fsp|msp|isp|ulysses)(?:\ [a-z_]+[\d=]\S*|\ recompute-\S+)+  # labels of plans
    | '[^']*' | [\w.]+\ =\ [^\s，；：]+ | \w+=[^\s，；：]*                    # values as typed
    | \S*[/\\.\d_]\S* | --\w+ | \w+(?:-\w+)+ | \b(?:DIR|FILE|N)\b         # files, keys, models, options
    """,
    re.VERBOSE,
)


def left(line: str) -> list[str]:
    """Words of an English line that the catalogue leaves in English, and no reader expects to."""
    words = re.findall(r"[A-Za-z]{3,}", KEPT.sub(" ", CATALOGUE.translated(line)))
    return [one for one in words if one not in ENGLISH]


def lines_of(question: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every line that the question's answer, or its refusal, says."""
    said: dict[str, None] = {}

    def hear(_: object) -> object:
        return lambda line: said.setdefault(line) or line

    monkeypatch.setattr("pss.plans.in_language", hear)
    monkeypatch.setattr("spec.program.command.in_language", hear)
    main(shlex.split(question))
    return list(said)


@pytest.mark.parametrize(
    "question", [pytest.param(one, marks=[pytest.mark.nightly] * (one in BY_NIGHT)) for one in (*ANSWERS, *REFUSALS)]
)
def test_every_phrase_has_an_entry(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of(question, monkeypatch)
    assert lines
    assert {line: words for line in lines if (words := left(line))} == {}


def test_a_phrase_without_an_entry_is_found() -> None:
    assert left("pipeline 2 with 4 chunks, unheard of 3, data parallel 32") == ["unheard"]
    assert left("error: --plan: tp = 3: whatever") == ["whatever"]
    assert CATALOGUE.translated("error: --plan: plan = 'schedule = 1': no such file") == (
        "错误：--plan：plan = 'schedule = 1'：没有这个文件"
    )


def texts_of(node: ast.AST) -> list[str]:
    """The texts that an expression may give, {} for what is not written there."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else ["{}"]
    if isinstance(node, ast.JoinedStr):
        return ["".join(parts) for parts in product(*map(texts_of, node.values))][:64]
    if isinstance(node, ast.FormattedValue):
        return texts_of(node.value)
    if isinstance(node, ast.IfExp):
        return [*texts_of(node.body), *texts_of(node.orelse)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*texts_of(node.left), ""]
    return ["{}"]


def phrases_of_the_code() -> str:
    """What the code may say, a text a line."""
    found = [os.strerror(code) for code in errno.errorcode]
    files = [Path(argparse.__file__), *(file for package in SAYING for file in sorted((ROOT / package).rglob("*.py")))]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.IfExp):
                found += (" ".join(text.split()) for text in texts_of(node) if text.strip())
    said = "\n".join(dict.fromkeys(found))
    return said + said.replace("_", " ")  # as terms of memory are printed


def pieces(msgid: str) -> Iterator[str]:
    """What a phrase says between its placeholders."""
    for piece in re.split(r"\{[a-z]+\d*\}|[(,]| and ", msgid.replace("{s}", "")):
        if re.search(r"[a-zA-Z]{2}", piece):
            yield piece.strip(" .,;:()=%")


def test_every_entry_is_a_phrase_of_the_code() -> None:
    said = phrases_of_the_code()
    assert [one for one in CATALOGUE.entries if not all(piece in said for piece in pieces(one))] == []
    assert "unheard" + " of" not in said


def test_a_translation_has_the_placeholders_of_its_phrase() -> None:
    for msgid, text in CATALOGUE.entries.items():
        placeholders = {"".join(one) for one in PLACEHOLDER.findall(msgid)} - {"s"}
        assert {"".join(one) for one in PLACEHOLDER.findall(text)} == placeholders, msgid


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        ("--lang zh", {"LANG": "en_US.UTF-8"}, "错误"),
        ("--lang=zh", {}, "错误"),
        ("--lang en", {"LANG": "zh_CN.UTF-8"}, "error"),
        ("", {"LANG": "zh_CN.UTF-8"}, "错误"),
        ("", {"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "C"}, "error"),
        ("", {"LANG": "C", "LC_ALL": "zh_TW"}, "错误"),
        ("", {"LC_ALL": "C.UTF-8", "LANGUAGE": "zh_CN:en"}, "错误"),
        ("", {"LANG": "zh_CN.UTF-8", "LANGUAGE": "en:zh"}, "error"),
        ("", {"LANG": "de_DE"}, "error"),
        ("--config zh", {}, "error"),
        ("", {}, "error"),
    ],
)
def test_the_option_names_the_language_else_the_environment(
    arguments: str, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LANGUAGE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert in_language(arguments.split())("error").replace(FILLER, "") == expected


def test_english_reads_no_catalogue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "spec.program.translation")
    assert main(shlex.split(f"price tp=2 {LLAMA3}")) == 0
    assert main(shlex.split(f"price tp=3 {LLAMA3}")) == 2
    assert "error: --plan: tensor x pipeline x context = 3: a divisor" in capsys.readouterr().err
    assert "spec.program.translation" not in sys.modules


def columns(line: str) -> int:
    return sum(1 + (east_asian_width(one) in "WF") for one in line)


@pytest.mark.parametrize("width", [80, 100])
def test_an_answer_in_chinese_fits_the_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And --json is that of the answer in English."""
    monkeypatch.setenv("COLUMNS", str(width))
    question = shlex.split(f"price tp=2,pp=2,recompute=full {LLAMA3} --cluster h100-sxm --framework megatron --verbose")
    told = {}
    for language in ("en", "zh"):
        file = tmp_path / f"{language}.json"
        assert main([*question, "--lang", language, "--json", str(file)]) == 0
        told[language] = json.loads(file.read_text(encoding="utf-8"))
        printed = capsys.readouterr().out
    assert told["zh"] == told["en"]
    assert main(["compare", *(str(tmp_path / f"{language}.json") for language in told), "--lang", "zh"]) == 0
    assert "\n每卡每秒 token" in capsys.readouterr().out
    assert FILLER not in printed
    lines = printed.splitlines()
    assert [line for line in lines if columns(line) > width and not line.startswith(("{", "wrote "))] == []
    assert any(line.startswith("任务     每步 524,288 token（64 条 8,192 token 的序列）") for line in lines)
    header = next(at for at, line in enumerate(lines) if line.startswith("方案 ") and "步时 ms" in line)
    assert columns(lines[header]) == columns(lines[header + 2]) == columns(lines[header + 1])


def test_an_error_in_chinese_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"price micro_batch=7 {LLAMA3} --lang zh")) == 2
    assert (
        capsys.readouterr().err == "错误：--plan：micro_batch = 7：全局批量 64 条序列应为 dp 8 x micro_batch 7 的倍数\n"
    )


def test_the_answers_of_the_chinese_pages_are_printed(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "docs" / "zh" / "README.md"
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    for match in reversed(list(BLOCK.finditer(text))):
        command.main(shlex.split(match[1].replace("\\\n", ""))[2:])
        said = "".join(capsys.readouterr())
        assert heads(match[2]) <= heads(said) or request.config.getoption("--update-golden")
        text = text[: match.start(2)] + said + text[match.end(2) :]
    if request.config.getoption("--update-golden"):
        page.write_text(text, encoding="utf-8")


def test_lines_break_between_characters_but_not_before_a_closing_mark() -> None:
    told = "".join(one + FILLER * (columns(one) > 1) for one in "数据并行 32，优化器（状态）切到 rank，每个")
    lines = [line.replace(FILLER, "") for line in wrap(told, 12, "", "  ")]
    assert "".join(line.strip() for line in lines).replace(" ", "") == "数据并行32，优化器（状态）切到rank，每个"
    assert all(columns(line) <= 12 for line in lines)
    assert not any(line.strip()[0] in "，）" or line.strip()[-1] == "（" for line in lines)
    assert wrap("waiting for tensor-parallel communication", 16) == ["waiting for", "tensor-parallel", "communication"]


def test_what_a_list_holds_keeps_its_commas() -> None:
    catalogue = Catalogue('msgid "a, b"\nmsgstr "甲乙"\nmsgid "c {n}"\nmsgstr "丙 {n}"\n')
    assert catalogue.translated("a, b: 1, c 2, d") == "甲乙：1，丙 2，d"
    assert catalogue.translated("x a, b y z u") == "x a, b y z u"
    assert catalogue.translated("c 2, words without an entry") == "c 2, words without an entry"
