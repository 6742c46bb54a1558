"""The page: one HTML file with its charts inside, no script, no network. And the same content as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports import capacity, claims, collectives, measured, papers, peers, published
from reports.conditions import conditions
from reports.store import Results, Run
from reports.table import Table, prose

_CSS = Path(__file__).with_name("page.css")
TITLE = "ScalingContrasts: contrastive losses, published and measured"


@dataclass(frozen=True)
class Section:
    """A heading with its paragraphs, tables and charts. `charts` are filled by the caller: they need Matplotlib."""

    id: str
    title: str
    short: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()  # long tables, shut until asked for


def sections(results: Results) -> list[Section]:
    """The report in reading order, without its charts."""
    boxes = measured.shapes(results.article)
    ways = [measured.three_ways(box, claims.ARTICLE_SYSTEM, "not published") for box in boxes]
    found = [
        Section(
            "published",
            "The article's loss step, as published",
            "Published",
            (
                "Forward and backward of one loss over R rows of 1024 bf16 dimensions per GPU, at five Matryoshka "
                "prefixes. Rows, columns, units and digits are the article's. The comparison crosses losses: "
                "ScalingContrasts scores one set against itself, the others score images against captions.",
            ),
            tuple(published.loss_step(results.loss_step)),
            (
                *(table for table in ways if table),
                published.one_box_against_two(results.loss_step),
                published.rates(results.loss_step),
            ),
        )
    ]
    found += [_run_section(run) for run in results.runs]
    if results.capacities:
        tables = tuple(capacity.largest_batch(each) for each in results.capacities)
        found.append(Section("largest-batch", "The largest batch each system holds", "Largest batch", (), tables))
    if results.declarations:
        found.append(_peers_section(results))
    found += [
        Section(
            "claims",
            "The article's claims",
            "Claims",
            (
                "Each claim, what the article's own table gives for it by arithmetic, and what was measured here on "
                "the hardware the claim is about. A claim without such hardware is not run.",
            ),
            (claims.table(results),),
        ),
        Section("footprint", "Footprint", "Footprint", (), tuple(published.footprint(results))),
        Section("domains", "Scale-up domains", "Scale-up", (), (published.domains(results.domains),)),
        Section(
            "literature",
            "Other publications",
            "Elsewhere",
            ("Figures that other projects publish for losses of this kind, each on its own hardware and setting.",),
            (
                *papers.tables(results),
                *(published.literature(stem, rows) for stem, rows in results.literature.items()),
            ),
        ),
    ]
    return found


def _peers_section(results: Results) -> Section:
    paragraph = (
        "Systems are compared only with an eye on what they compute. Every one is held to a float64 reference of its "
        "own loss before it is timed."
    )
    tables = (peers.declarations(results.declarations), peers.caveats(results.caveats))
    return Section("peers", "What each peer computes", "Peers", (paragraph,), tables)


def _run_section(run: Run) -> Section:
    shapes = measured.shapes(run)
    timed = [] if all(collectives.is_collective(row) for row in run.rows) else [measured.timings(run)]
    tables = [measured.loss_step(shape) for shape in shapes]
    ways = [table for table in (measured.three_ways(shape) for shape in shapes) if table]
    scaling = collectives.scaling(run)
    revision = next((row["git_revision"] for row in run.rows if row["git_revision"]), "not recorded")
    paragraph = (
        f"Machine {run.machine}, campaign {run.campaign}, protocol {run.protocol}, run {run.run_id}, "
        f"revision {revision}. Runs of different protocols are never compared with each other."
    )
    return Section(
        run.slug,
        f"Measured on {run.machine}: {run.campaign}, protocol {run.protocol}"
        + (", cold caches" if run.cache == "cold" else "")
        + (f", run {run.run_id}" if run.beside else ""),
        f"{run.machine} {run.campaign}" + (" cold" if run.cache == "cold" else ""),
        (paragraph,),
        (*tables, *collectives.tables(run), *([scaling] if scaling else [])),
        (*ways, *timed, *filter(None, [conditions(run)]), measured.statuses(run)),
    )


def markdown(found: Sequence[Section], remarks: Sequence[str]) -> str:
    """Everything as Markdown tables."""
    out = [f"# {TITLE}\n"]
    for section in found:
        out.append(f"## {section.title}\n")
        out += [f"{paragraph}\n" for paragraph in section.paragraphs]
        for table in (*section.tables, *section.folded):
            out.append(f"### {table.title}\n")
            out.append(table.markdown())
            if table.note:
                out.append(f"{table.note}\n")
    if remarks:
        out.append("## Not shown\n")
        out.append("\n".join(f"- {remark}" for remark in remarks) + "\n")
    return "\n".join(out)


def page(found: Sequence[Section], charts: Mapping[str, Sequence], facts: Sequence[str], remarks: Sequence[str]) -> str:
    """The HTML page. `charts` maps a section's id to its charts (reports.charts.Chart)."""
    links = "".join(f'<li><a href="#{s.id}">{html.escape(s.short)}</a></li>' for s in found)
    body = "\n".join(_section(section, charts.get(section.id, ())) for section in found)
    listed = "".join(f"<li>{prose(fact)}</li>" for fact in facts)
    left_out = "".join(f"<li>{html.escape(remark)}</li>" for remark in remarks)
    not_shown = f"<details><summary>Not shown</summary><ul>{left_out}</ul></details>" if remarks else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(TITLE)}</title>\n<style>\n{_CSS.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{html.escape(TITLE)}</h1>\n"
        "<p>What a contrastive loss costs on scale-up machines: step time and memory per GPU, as published, next to "
        "what this suite has measured. Rendered from <code>results/</code> alone.</p>\n"
        f'<ul class="facts">{listed}</ul>\n</header>\n'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{body}\n</main>\n'
        "<footer>\n<p>Decimal units throughout: 1 MB is 10⁶ bytes. A shaded cell is the fastest of its row. "
        "How each figure is derived: <code>docs/metrics.md</code>.</p>\n"
        f"{not_shown}\n</footer>\n</body>\n</html>\n"
    )


def _section(section: Section, charts: Sequence) -> str:
    parts = [f'<section id="{section.id}">\n<h2>{html.escape(section.title)}</h2>']
    parts += [f"<p>{prose(paragraph)}</p>" for paragraph in section.paragraphs]
    parts += [_verdicts(table.html()) for table in section.tables]
    parts += [_chart(chart) for chart in charts]
    for table in section.folded:
        parts.append(f"<details><summary>{html.escape(table.title)}</summary>\n{table.html()}</details>")
    parts.append("</section>")
    return "\n".join(parts)


def _verdicts(text: str) -> str:
    return re.sub(r'<td class="left">(confirmed|refuted)</td>', r'<td class="left \1">\1</td>', text)


def _chart(chart) -> str:
    title, description = html.escape(chart.title), html.escape(chart.description)
    head = f'<title id="{chart.id}-title">{title}</title><desc id="{chart.id}-desc">{description}</desc>'
    svg = inline(chart.svg, chart.id)
    opened = svg.index(">") + 1
    tag = f'{svg[: opened - 1]} role="img" aria-labelledby="{chart.id}-title {chart.id}-desc">'
    return (
        f'<figure class="chart" id="chart-{chart.id}">\n<figcaption>{title}</figcaption>\n'
        f"{tag}{head}{svg[opened:]}</figure>"
    )


def inline(svg: str, name: str) -> str:
    """A chart's SVG for use inside HTML: ids of its own, the page's colours, as wide as its place."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'xlink:href="#', f'xlink:href="#{name}-', svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for plain, variable in (("#1f2328", "ink"), ("#59636e", "muted"), ("#d1d9e0", "rule"), ("#fffffe", "panel")):
        svg = svg.replace(plain, f"var(--{variable})")
    return re.sub(r"#(c04a00|0067a3|00785a|a8527f|8f6a00|2f7fb8|6b4fa0|7a5230|3f6b1f)", r"var(--c-\1)", svg)
