"""Command line of ``slipstream``: arguments and exit statuses; the work is done in the module of each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from slipstream.core import __version__

app = typer.Typer(
    help="Faster weight sync, rollout and placement for existing RL post-training runs.",
    epilog="Exit status: 0 all is well; 1 an error, or a check that failed; 2 wrong usage; 130 interrupted.\n\n"
    "Tab completion: slipstream --install-completion.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _examples(*lines: str) -> str:
    """Return the end of a command's help; each line is a paragraph, or it would be joined to the one before."""
    return "\n\n".join(["Examples:", *(f"  slipstream {line}" for line in lines)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit; errors print one message, with ``--debug`` the traceback.

    :param arguments: without the program name; None takes those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        app([each for each in given if each != "--debug"], prog_name="slipstream")
    except Exception as error:
        if debug:
            raise
        named = str(error) if type(error).__module__.startswith("slipstream.") else f"{type(error).__name__}: {error}"
        print(f"error: {named}\n(--debug shows the traceback)", file=sys.stderr)
        sys.exit(1)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"slipstream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also after a command.")] = False,
) -> None:
    """Options of every command; `main` takes ``--debug`` out of the arguments, wherever it stands."""


@app.command(
    epilog=_examples(
        "config +slipstream=sync",
        "config trainer.total_epochs=3 +slipstream=full slipstream.weight_sync.level=2 --json",
    )
)
def config(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides, as on the training command line."),
    ] = None,
    framework: Annotated[str, typer.Option(help="Compose this framework's config; default: an installed one.")] = "",
    config_name: Annotated[str, typer.Option(help="The framework's primary config; default: its usual one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the resolved slipstream node of a training command line."""
    from slipstream.core.cli import config as command

    command.run(overrides or [], framework, config_name, as_json=as_json)


@app.command(
    epilog=_examples(
        "doctor",
        "doctor --json",
    )
)
def doctor(
    plain: Annotated[bool, typer.Option("--plain", help="Print plain text without colour.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that slipstream fits what is installed here; exit status 1 when a seam is broken."""
    from slipstream.core.cli import doctor as command

    raise typer.Exit(command.run(plain=plain, as_json=as_json))


@app.command(
    context_settings={"ignore_unknown_options": True},  # the plugin knows what its framework takes
    epilog=_examples(
        "demo",
        "demo --model smollm2 trainer.total_training_steps=4",
    ),
)
def demo(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OVERRIDES",
            help="Given to both runs; for verl Hydra overrides, for example trainer.total_training_steps=4.",
            show_default=False,
        ),
    ] = None,
    framework: Annotated[str, typer.Option(help="Whose demo; default: the first that has one.")] = "",
    model: Annotated[str, typer.Option(help="Model name or folder; default: the demo's own.")] = "",
) -> None:
    """Train a small model without and with slipstream, and compare."""
    from slipstream.core.cli import demo as command

    raise typer.Exit(command.run(framework, model or None, arguments or []))


@app.command(
    context_settings={"ignore_unknown_options": True},  # each benchmark has options of its own
    epilog=_examples(
        "bench sync --quick",
        "bench rollout --data ../shared/data",
    ),
)
def bench(
    area: Annotated[str, typer.Argument(help="What to measure: sync, draft, ...", show_default=False)],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="OPTIONS", help="For example --quick --data DIR.", show_default=False),
    ] = None,
) -> None:
    """Measure slipstream beside its peers; exit status 1 when a bar is missed."""
    from slipstream.core.cli import bench as command

    raise typer.Exit(command.run(area, arguments or []))


@app.command(
    "inspect",
    epilog=_examples(
        "inspect frames.slipstream",
        "inspect frames.slipstream --json",
    ),
)
def inspect_frames(
    file: Annotated[str, typer.Argument(help="Captured frames, a chain (folder or URL), or one step of it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what is in captured weight-sync frames or a chain; exit status 1 when a checksum is wrong."""
    from slipstream.core.cli import inspect as command

    if "://" not in file and not Path(file).exists():
        raise typer.BadParameter(f"{file!r} does not exist", param_hint="file")
    raise typer.Exit(command.run(file, as_json=as_json))


@app.command(
    epilog=_examples(
        "plan docs/example-workload.yaml --html plan.html --trace plan.json",
    )
)
def plan(
    workload: Annotated[
        Path,
        typer.Argument(help="Pipelines and their cluster, JSON or YAML (docs/graph.md).", exists=True, dir_okay=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write the schedule as a page with a Gantt chart.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the schedule as a trace for ui.perfetto.dev.")] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Slowdowns as `slipstream profile` measured them.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Simulate several training runs on one cluster under every scheduler, and say which one to use."""
    from slipstream.core.cli import plan as command

    raise typer.Exit(command.run(workload, as_json=as_json, html=html, trace=trace, profile=profile))


@app.command(epilog=_examples("profile --out machine.json", "profile --seconds 0.1 --width 256 --json"))
def profile(
    seconds: Annotated[float, typer.Option(min=0.01, help="Of each measurement; there are about 40.")] = 0.5,
    width: Annotated[int | None, typer.Option(min=16, help="Of the stand-in model; default: a large one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the profile, for `slipstream plan --profile`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure on this machine how long work takes by batch and share, and how much two kinds slow each other down."""
    from slipstream.core.cli import profile as command

    command.run(seconds=seconds, width=width, out=out, as_json=as_json)


@app.command(
    epilog=_examples(
        "replay --groups 64",
        "replay --workload multi_turn_long --replicas 8 --policy cache_aware --policy verl",
    )
)
def replay(
    data: Annotated[
        Path | None,
        typer.Option(help="A rollouts or trace file (.zst), or a folder with rollouts/; default: generated lengths."),
    ] = None,
    workload: Annotated[
        str, typer.Option(help="multi_turn, multi_turn_long, single_turn, heavy_prompt; not with a file.")
    ] = "multi_turn",
    policy: Annotated[
        list[str] | None, typer.Option(help="A routing policy; repeat it. Default: ours and all peers.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Engine replicas.")] = 4,
    groups: Annotated[int, typer.Option(min=1, help="Groups of 8 samples.")] = 256,
    kv_tokens: Annotated[int, typer.Option(min=1, help="KV tokens of a replica.")] = 400_000,
    max_running: Annotated[int, typer.Option(min=1, help="Running requests of a replica.")] = 64,
    stretch: Annotated[float, typer.Option(min=0.0, help="Multiplies the times of a trace.")] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Requests of a trace to play.")] = 3000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate a rollout step under routing policies: time, cache hits, recomputed prefill."""
    from slipstream.core.cli import replay as command
    from slipstream.core.rollout.requests import ReplicaLimits

    limits = ReplicaLimits(kv_tokens, max_running)
    loaded = command.load(data, workload, groups, seed, stretch=stretch, count=count)
    command.run(loaded, policy, replicas, limits, seed, as_json=as_json)


@app.command(
    epilog=_examples(
        "report outputs/2026-01-31/09-30-00",
        "report ours.jsonl --baseline verl-metrics.jsonl -o ours.html --perfetto ours.json",
    )
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="An event log (slipstream.jsonl), or a folder that has it.", show_default=False
        ),
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="Compare with this run: a log, or for verl a file of trainer.logger=file.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page; default: slipstream-report.html.", show_default=False),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(help="Also write a trace for ui.perfetto.dev.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; a page only with --output.")] = False,
) -> None:
    """Show runs as one HTML page that opens offline: figures, what to do, charts."""
    from slipstream.core.cli import report as command

    raise typer.Exit(command.run(runs, baseline=baseline, output=output, perfetto=perfetto, as_json=as_json))
