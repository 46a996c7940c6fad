"""The result of `speed` as tables for a terminal."""

from typing import Any

from benchmarks.output import table

SAMPLES = 10  # incoming ones of a step
GOAL_SPEEDUP, HOPED_SPEEDUP, GOAL_BOUND, GOAL_OUTSIDE, GOAL_BYTES = 1.3, 1.5, 0.6, 0.10, 0.28


def tables(result: dict[str, Any]) -> str:
    parts = [_head(result), _steps(result), _shares(result), _operations(result), _layers(result)]
    return "\n\n".join([*parts, _bytes(result), _memory_cost(result)])


def _spread(values: dict[str, float], digits: int = 2) -> str:
    return f"{values['median']:.{digits}f} ({values['q1']:.{digits}f} to {values['q3']:.{digits}f})"


def _head(result: dict[str, Any]) -> str:
    load = result["load_average"]
    return (
        f"{result['hardware']}, {result['threads']} thread(s), torch {result['versions']['torch']}, "
        f"{result['plan']['rounds']} rounds of {result['plan']['steps']} steps, images: {result['images']}\n"
        f"load average {load['start'][0]:.1f} at the start, {load['end'][0]:.1f} at the end "
        "(wall times count only where nothing else ran)"
    )


def _steps(result: dict[str, Any]) -> str:
    bound, speedup = result["bound"], result["speedup"]
    rows = [
        [
            name,
            _spread(step["wall_ms"], 0),
            _spread(step["processor_ms"], 0),
            f"{step['samples_per_second']:.1f}",
        ]
        for name, step in result["step"].items()
    ]
    rows.append(
        [
            "bound by matmul",
            f"{bound['wall_ms']:.0f}",
            f"{bound['processor_ms']:.0f}",
            f"{SAMPLES * 1e3 / bound['wall_ms']:.1f}",
        ]
    )
    steps = table(["one step", "wall ms", "processor ms", "samples/s"], rows)
    ratios = table(
        ["median (quartiles)", "wall", "processor", "goal"],
        [
            [
                "times as fast as plain",
                _spread(speedup["wall"]),
                _spread(speedup["processor"]),
                f">= {GOAL_SPEEDUP}, hoped {HOPED_SPEEDUP}",
            ],
            [
                "share of the bound",
                _spread(bound["share_wall"]),
                _spread(bound["share_processor"]),
                f">= {GOAL_BOUND}",
            ],
        ],
    )
    gflops = bound["matmul_gflops"]
    arithmetic = (
        f"the bound: {bound['step_gflop']:.2f} GFLOP a step at {gflops['median']:.1f} GFLOP/s "
        f"(best {gflops['best']:.1f}), the speed of a float32 matrix product here"
    )
    return f"{steps}\n\n{ratios}\n{arithmetic}"


def _shares(result: dict[str, Any]) -> str:
    rows = [[part, f"{share:.1%}"] for part, share in result["shares"].items()]
    rows.append(["all outside the network", f"{result['outside_network']:.1%} (goal <= {GOAL_OUTSIDE:.0%})"])
    return table(["part of our step", "share"], rows)


def _operations(result: dict[str, Any]) -> str:
    total = sum(result["operations_ms"].values())
    rows = [[kind, f"{ms:.1f}", f"{ms / total:.1%}"] for kind, ms in result["operations_ms"].items()]
    return table(["kind of operation", "ms a step", "share"], rows)


def _layers(result: dict[str, Any]) -> str:
    rows = [
        [
            row["layer"],
            f"{row['times']}",
            f"{row['forward_ms']:.2f}",
            f"{row['forward_share_of_matmul']:.2f}",
            f"{row['backward_ms']:.2f}",
            f"{row['backward_share_of_matmul']:.2f}",
        ]
        for row in result["layers"]
    ]
    header = ["convolution, 40 images", "times", "forward ms", "of matmul", "backward ms", "of matmul"]
    return table(header, rows)


def _bytes(result: dict[str, Any]) -> str:
    sizes = result["bytes_per_sample"]
    rows = [["float32, as the plain step", f"{sizes['float32']:,}", "1.000", ""]]
    for codec, size in sizes.items():
        if codec != "float32":
            goal = f"<= {GOAL_BYTES}" if codec == "raw" else ""
            rows.append(
                [f"{codec}, 16-bit records", f"{size['bytes']:,.0f}", f"{size['share_of_float32']:.3f}", goal]
            )
    return table(["bytes a sample", "bytes", "share", "goal"], rows)


def _memory_cost(result: dict[str, Any]) -> str:
    rows = []
    for cost in result["memory_cost"]:
        for name in ("sample", "update"):
            times = [f"{us:.0f}" for us in cost[name]["us"]]
            rows.append([f"{name} 10, {cost['codec']}", *times, _spread(cost[name]["largest_to_smallest"])])
    held = [f"{held:,}" for held in result["memory_cost"][0]["sample"]["held"]]
    return table(["memory, us by samples held", *held, "largest/smallest"], rows)
