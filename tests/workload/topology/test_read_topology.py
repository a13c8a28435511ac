"""A topology file is read back as written, and its defects are found."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.errors import ExportError
from workload.findings import WorkloadError
from workload.topology.picture import draw_topology, layers
from workload.topology.templates import TopologyFlags, build_topology
from workload.topology.topology import read_topology, write_topology

SMALL = TopologyFlags(template="AlibabaHPN", gpus=16, num_psw=2)


def small_lines(tmp_path: Path) -> list[str]:
    path = tmp_path / "small"
    write_topology(path, build_topology(SMALL))
    return path.read_text().split("\n")


def found(lines: list[str], tmp_path: Path) -> set[tuple[int, str, str]]:
    path = tmp_path / "changed"
    path.write_text("\n".join(lines))
    _, findings = read_topology(path)
    return {(each.line, each.severity.value, each.code) for each in findings}


@pytest.mark.parametrize("template", ["Spectrum-X", "DCN+", "NVL", "NVL576"])
def test_templates_are_read_back_without_findings(template: str, tmp_path: Path) -> None:
    topology = build_topology(TopologyFlags(template=template))
    path = tmp_path / topology.file_name
    write_topology(path, topology)
    assert read_topology(path) == (topology, [])


@pytest.mark.parametrize(
    ("number", "text", "expected"),
    [
        (1, "36 8 2 18 80", {(1, "broken", "header")}),
        (1, "36 8 2 x 80 H100", {(1, "broken", "header")}),
        (1, "36 8 20 18 80 H100", {(1, "broken", "header")}),
        (1, "36 0 2 18 80 H100", {(1, "broken", "header")}),
        (1, "36 8 2 18 81 H100", {(1, "broken", "links")}),
        (
            1,
            "36 6 2 18 80 H100",
            {(1, "wrong", "servers"), (21, "wrong", "nv-switch"), (24, "wrong", "nv-switch")},
        ),
        (2, "16 17", {(2, "broken", "switches")}),
        (2, " ".join(str(each) for each in range(35, 15, -1)), {(2, "broken", "switches")}),
        (3, "0 16 2880Gbps 0.000025ms", {(3, "broken", "fields")}),
        (3, "0 99 2880Gbps 0.000025ms 0", {(3, "broken", "node")}),
        (3, "0 -1 2880Gbps 0.000025ms 0", {(3, "broken", "node")}),
        (3, "5 5 2880Gbps 0.000025ms 0", {(3, "broken", "node")}),
        (3, "0 16 fast 0.000025ms 0", {(3, "broken", "wire")}),
        (3, "0 16 2880Gbps soon 0", {(3, "broken", "wire")}),
        (3, "0 16 2880Gbps 0.000025ms 7", {(3, "broken", "wire")}),
        (3, "0 18 2880Gbps 0.000025ms 0", {(4, "wrong", "twice")}),
        (3, "0 17 2880Gbps 0.000025ms 0", {(27, "wrong", "nv-switch")}),
        (3, "0 1 2880Gbps 0.000025ms 0", {(3, "wrong", "gpu-gpu")}),
        (3, "16 0 2880Gbps 0.000025ms 0", {(3, "note", "order")}),
    ],
)
def test_defects(number: int, text: str, expected: set[tuple[int, str, str]], tmp_path: Path) -> None:
    lines = small_lines(tmp_path)
    assert lines[0] == "36 8 2 18 80 H100"
    lines[number - 1] = text
    assert expected <= found(lines, tmp_path)
    if "broken" in {severity for _, severity, _ in expected}:
        assert read_topology(tmp_path / "changed")[0] is None


def test_a_cut_off_switch(tmp_path: Path) -> None:
    lines = small_lines(tmp_path)
    kept = [line for line in lines[2:] if line.split()[1:2] != ["35"]]
    lines = ["36 8 2 18 64 H100", lines[1], *kept]
    assert found(lines, tmp_path) == {(1, "wrong", "cut-off")}


def test_more_nodes_than_links_can_join_are_refused_before_they_are_laid_out(tmp_path: Path) -> None:
    assert found(["999999999 8 0 0 0 H100", ""], tmp_path) >= {(1, "broken", "cut-off")}


@settings(max_examples=60, deadline=None)
@given(content=st.text(alphabet="0123456789 \nGbps.ms-xé", max_size=200), keep=st.integers(0, 30))
def test_noise_never_crashes(content: str, keep: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("noise")
    path = folder / "noise"
    path.write_text("\n".join(small_lines(folder)[:keep]) + content)
    try:
        topology, findings = read_topology(path)
    except WorkloadError:
        return
    assert topology is not None or findings


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/null")):
        with pytest.raises(WorkloadError):
            read_topology(path)


def test_picture(tmp_path: Path) -> None:
    topology = build_topology(SMALL)
    assert sorted(set(layers(topology))) == [-1, 0, 1, 2]
    draw_topology(topology, tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(set(layers(build_topology(TopologyFlags(template="NVL576"))))) == [-2, -1, 0]
    with pytest.raises(ExportError, match="at most 400"):
        draw_topology(build_topology(TopologyFlags(template="NVL576")), tmp_path / "n.png")
    with pytest.raises(ExportError, match=r"\.png"):
        draw_topology(topology, tmp_path / "t.xyz")
