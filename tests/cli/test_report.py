"""gnncomm report: the page, its plots, and what it says of folders that hold no run."""

from __future__ import annotations

import base64
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from lightning_gnncomm.callbacks.accounting import PARAMETERS
from lightning_gnncomm.callbacks.events import EVENTS, Epoch, Message, Run, append_event, mend_events
from lightning_gnncomm.cli.main import main
from lightning_gnncomm.cli.plots import PLOTS, draw
from lightning_gnncomm.comm.probe import StalenessRecord
from lightning_gnncomm.comm.schedule import Decision
from lightning_gnncomm.comm.traffic import TrafficRecord
from lightning_gnncomm.slots import Role, Slot

FORWARD = Slot("net.convs.0", "x")
BACKWARD = FORWARD.as_role(Role.GRADIENT)


def epochs(number: int, ranks: int = 2, sends: bool = True) -> list[Epoch]:
    """What a run could have done; the losses hold one value that is not finite."""
    made = []
    for k in range(number):
        record = TrafficRecord(1, 10, 80, 80, 1280, 0.2, 0.1)
        stale = StalenessRecord(4, 1, 3, 1, 0.5, 2.0 * (k % 2), 0.2, 2.0 * (k % 2))
        made.append(
            Epoch(
                epoch=k,
                step=k + 1,
                seconds=[1.0 + 0.1 * rank for rank in range(ranks)],
                validation_seconds=[0.0] * ranks,
                wait_seconds=[0.2] * ranks if sends else [0.0] * ranks,
                hidden_seconds=[0.1] * ranks if sends else [0.0] * ranks,
                sent_bytes=[80] * ranks if sends else [0] * ranks,
                metrics={"train_loss": math.nan if k == 1 else 1 / (k + 1), "val_loss": 1.0, "val_acc": 0.5},
                traffic={FORWARD: record, BACKWARD: record, PARAMETERS: record} if sends else {},
                staleness={FORWARD: stale, BACKWARD: stale} if sends else {},
                decisions=[(k, Decision("synchronous", "drift <b>0.7</b>", FORWARD))] if sends and k == 2 else [],
                messages=messages(ranks) if sends and k == 0 else [],
            )
        )
    return made


def messages(ranks: int) -> list[Message]:
    return [Message(rank, FORWARD, wait, 0.1 + wait, 0.2 * wait) for rank in range(ranks) for wait in (False, True)]


def write_run(folder: Path, made: list[Epoch], ended: bool = True) -> Path:
    mend_events(folder / EVENTS)
    append_event(folder / EVENTS, "start", {"ranks": len(made[0].seconds), "codec": "OneBitCodec()"})
    for epoch in made:
        append_event(folder / EVENTS, "epoch", epoch.to_plain())
    if ended:
        append_event(folder / EVENTS, "end", {"messages": [m.to_plain() for m in made[0].messages]})
    return folder


class Page(HTMLParser):
    """What a page refers to, and its headings and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "data", "action", "srcset")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report(*arguments: object) -> int:
    try:
        main(["report", *map(str, arguments)])
    except SystemExit as leave:
        return int(leave.code or 0)
    return 0


def test_the_page_has_every_section_and_needs_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out, png = write_run(tmp_path / "run", epochs(4)), tmp_path / "pages" / "report.html", tmp_path / "png"
    assert report(run, "--out", out, "--png", png) == 0
    assert f"Wrote {out}" in capsys.readouterr().out
    text = out.read_text()
    page = Page(text)
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == ["Overview", *(plot.title for plot in PLOTS), "Decisions of the schedule"]
    assert not page.tags & {"script", "link", "iframe", "object", "embed"}
    assert "@import" not in text
    assert "url(" not in text
    assert len(page.references) == len(PLOTS)
    for reference in page.references:
        assert reference.startswith("data:image/svg+xml;base64,")
        drawn = base64.b64decode(reference.partition(",")[2])
        for element in ET.fromstring(drawn).iter():
            links = [value for name, value in element.attrib.items() if name.endswith("href")]
            assert all(link.startswith(("#", "data:")) for link in links)
    assert "drift <b>0.7</b>" in page.texts  # as text, not as a tag
    assert "OneBitCodec()" in page.texts
    assert {path.name for path in png.iterdir()} == {f"{plot.name}.png" for plot in PLOTS}
    for path in png.iterdir():
        with Image.open(path) as image:
            image.load()
            assert min(image.size) > 200
            assert len(image.convert("L").getcolors() or ()) > 10  # something is drawn


def test_the_same_record_gives_the_same_plot(tmp_path: Path) -> None:
    runs = [("one", Run(tmp_path, epochs=epochs(2)))]
    assert draw(PLOTS[1], runs, ["svg"]) == draw(PLOTS[1], runs, ["svg"])


def test_several_runs_share_the_plots(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", epochs(4))
    other = write_run(tmp_path / "other", epochs(3, ranks=3), ended=False)
    single = write_run(tmp_path / "single", epochs(3, ranks=1, sends=False))
    out = tmp_path / "report.html"
    assert report(one, other, single, "--out", out) == 0
    text = out.read_text()
    assert "<th>one</th><th>other</th><th>single</th>" in text
    assert text.count("<img ") == len(PLOTS)
    assert "other: The run was stopped, or still goes on." in text
    assert "one: The run was stopped" not in text


def test_plots_overlay_runs_by_name(tmp_path: Path) -> None:
    runs = [(name, Run(tmp_path, epochs=epochs(4))) for name in ("one", "other")]
    (metrics,) = [plot for plot in PLOTS if plot.name == "metrics"]
    figure = metrics.build(runs)
    assert figure is not None
    loss, accuracy = figure.axes
    assert loss.get_title() == "loss"
    labels = [line.get_label() for line in loss.lines]
    assert labels == ["one: train_loss", "one: val_loss", "other: train_loss", "other: val_loss"]
    assert len({line.get_color() for line in loss.lines}) == 2
    assert [line.get_label() for line in accuracy.lines] == ["one: val_acc", "other: val_acc"]


def test_bytes_and_ages_are_those_of_the_record(tmp_path: Path) -> None:
    runs = [("one", Run(tmp_path, epochs=epochs(4)))]
    plots = {plot.name: plot.build(runs) for plot in PLOTS if plot.name in ("bytes", "staleness")}
    bars = plots["bytes"].axes[1].patches  # type: ignore[union-attr]
    assert [bar.get_width() for bar in bars] == [80, 80, 80]  # type: ignore[attr-defined]
    age, error, _ = plots["staleness"].axes  # type: ignore[union-attr]
    assert list(age.lines[0].get_ydata()) == [0.75] * 4
    assert list(error.lines[0].get_xdata()) == [1, 3]  # where errors were measured
    (mark,) = [line for line in age.lines[2:] if len(set(line.get_xdata())) == 1]
    assert mark.get_xdata()[0] == 2


def test_a_run_of_one_process_says_why_plots_are_missing(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert report(write_run(tmp_path / "run", epochs(1, ranks=1, sends=False)), "--out", out) == 0
    text = out.read_text()
    assert "the run had one process, or a strategy that exchanges no halos" in text
    assert text.count("<img ") == 3
    assert "The schedule decided nothing." in text


def test_many_ranks_are_cut_and_said_so(tmp_path: Path) -> None:
    runs = [("one", Run(tmp_path, epochs=epochs(2, ranks=20)))]
    (timeline,) = [plot for plot in PLOTS if plot.name == "timeline"]
    figure = timeline.build(runs)
    assert figure is not None
    assert len(figure.axes) == 8
    assert "the first 8 of 20" in figure.axes[0].get_title()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "There is no such folder"),
        ("", "at least one epoch"),
        ("something else\n", "events.jsonl, line 1"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, expected: str
) -> None:
    if content is not None:
        mend_events(tmp_path / "run" / EVENTS)
        (tmp_path / "run" / EVENTS).write_text(content)
    assert report(tmp_path / "run", "--out", tmp_path / "report.html") == 2
    err = capsys.readouterr().err
    assert "gnncomm report: error: Expected" in err
    assert expected in err
    assert not (tmp_path / "report.html").exists()


def test_a_half_written_line_is_left_out_and_said_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", epochs(3), ended=False)
    path = run / EVENTS
    path.write_text(path.read_text()[:-40])
    out = tmp_path / "report.html"
    assert report(run, "--out", out) == 0
    assert "0 to 1" in out.read_text()
    assert "was being written then, and is left out" in out.read_text()


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "lightning_gnncomm.cli.plots")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert report(write_run(tmp_path / "run", epochs(1)), "--out", tmp_path / "report.html") == 2
    assert "pip install 'lightning-gnncomm[report]'" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("--help") == 0
    out = capsys.readouterr().out
    for part in ("--trainer.callbacks+=RunRecorder", "gnncomm report lightning_logs/version_0", "--png", "killed"):
        assert part in out
