"""The command line: `laplacianformer COMMAND`. No logic here."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from laplacianformer import __version__
from laplacianformer._util.errors import InputError


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0, 1 where a command says so (some pictures can't be read), 2 for wrong input."""
    parser = argparse.ArgumentParser(prog="laplacianformer", description="Vision backbones with Laplacian attention.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True)
    for add in (_add_info, _add_demo, _add_train, _add_eval, _add_predict, _add_detect, _add_export, _add_reproduce):
        add(commands)

    parsed, rest = parser.parse_known_args(arguments)
    try:
        _take(rest, parsed)
        code = parsed.run(parsed)
    except (InputError, OSError) as error:
        parser.exit(2, f"laplacianformer {parsed.command}: {error}\n")
    if code:
        sys.exit(code)


# ---- what each command takes ----


def _add_info(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    info = commands.add_parser("info", help="parameters and cost of every size, beside the paper's")
    info.add_argument("--size", type=_positive, default=224, metavar="PIXELS", help="image side (default: %(default)s)")
    info.add_argument("--json", action="store_true", help="print JSON instead of a table")
    info.set_defaults(run=_info)


def _add_demo(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    demo = commands.add_parser(
        "demo",
        help="a local web page: classes of a picture, and what its places look at",
        description="Opens a page on this computer alone: drop a picture, see its classes, click a place in it to see "
        "its attention in any layer and head, with another lambda, and with the Gaussian kernel and softmax beside it. "
        "It needs no network, and leaves no files.",
        epilog="""examples:
  laplacianformer demo
  laplacianformer demo --weights runs/cifar10/model.safetensors --port 8000

It needs gradio: pip install 'laplacianformer[page]'. Ctrl+C ends it.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_weights(demo)
    demo.add_argument("--port", type=_port, metavar="N", help="of the address (default: the first free one from 7860)")
    demo.set_defaults(run=_demo)


def _add_train(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    train = commands.add_parser(
        "train",
        help="train a classifier or a detector from a recipe",
        description="Trains as a recipe says: one inside the package, or a .yaml file. Under torchrun or SLURM the "
        "same command runs on all processes. A run that was killed goes on with --resume.",
        epilog="""examples:
  laplacianformer train --recipe digits
  laplacianformer train --recipe cifar10 optimise.epochs=5 --data cifar10/ --output runs/cifar10
  laplacianformer train --recipe cifar10 --data cifar10/ --output runs/cifar10 --resume
  laplacianformer train --recipe shapes-maskrcnn
  torchrun --nproc-per-node 8 -m laplacianformer train --recipe imagenet-tiny --data imagenet/""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    train.add_argument("--recipe", required=True, metavar="NAME|FILE", help="a recipe of the package, or a .yaml file")
    train.add_argument(
        "--data", metavar="[READER:]DIR", help="where the images are, as DIR, idx:DIR or torch/cifar10:DIR"
    )
    train.add_argument("--output", type=Path, metavar="DIR", help="folder of the run (default: runs/NAME)")
    train.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output, if there is one")
    train.add_argument("overrides", nargs="*", metavar="section.key=value", help="as optimise.epochs=10")
    train.set_defaults(run=_train, takes="overrides")


def _add_predict(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    predict = commands.add_parser(
        "predict",
        help="say what is in pictures",
        description="Prints the most probable classes of each picture. Pictures are turned as their EXIF data says, "
        "transparency is put on white, an animation gives its first frame, 16 bits are scaled to 8.",
        epilog="""examples:
  laplacianformer predict photo.png
  laplacianformer predict holiday/ 'scans/**/*.tif' --top 5
  laplacianformer predict --weights runs/demo/model.safetensors --json digits/ > digits.json
  laplacianformer predict photo.png --attention attention.png --query 0.3,0.5

exit code: 0; 1 if some pictures could not be read (each is named, the others are printed); 2 if none could,
or if something else that was given can't be used""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="files, folders (searched through) or patterns")
    _add_weights(predict)
    predict.add_argument("--top", type=_positive, default=3, metavar="K", help="classes shown (default: %(default)s)")
    predict.add_argument("--json", action="store_true", help="print JSON, and nothing else, to the standard output")
    predict.add_argument(
        "--attention",
        type=Path,
        metavar="OUT.png",
        help="draw what the last layer of each stage looks at, for at most 12 pictures",
    )
    predict.add_argument(
        "--query",
        type=_place,
        default=(0.5, 0.5),
        metavar="X,Y",
        help="whose attention is drawn: from 0,0 (left, top) to 1,1 (right, bottom) (default: 0.5,0.5)",
    )
    _add_device(predict)
    predict.set_defaults(run=_predict, takes="images")


def _add_detect(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    detect = commands.add_parser(
        "detect",
        help="find objects in pictures",
        description="Draws boxes, masks, labels and scores on a copy of each picture, and writes detections.json with "
        "boxes in pixels and masks as COCO's run lengths.",
        epilog="""examples:
  laplacianformer detect --weights runs/shapes-maskrcnn/model.safetensors pictures/
  laplacianformer detect --weights detector.safetensors street.jpg 'holiday/*.jpg' --threshold 0.7 --output found

exit code: 0; 1 if some pictures could not be read (each is named, the others are drawn); 2 if none could,
or if something else that was given can't be used""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    detect.add_argument("images", nargs="+", metavar="IMAGE", help="files, folders (searched through) or patterns")
    detect.add_argument("--weights", type=Path, required=True, metavar="FILE", help="weights file of a detector")
    detect.add_argument(
        "--threshold", type=_share, default=0.5, metavar="SCORE", help="least score shown (default: %(default)s)"
    )
    detect.add_argument(
        "--output",
        type=Path,
        default=Path("runs/detect"),
        metavar="DIR",
        help="folder written to (default: %(default)s)",
    )
    _add_device(detect)
    detect.set_defaults(run=_detect, takes="images")


def _add_eval(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    evaluate = commands.add_parser(
        "eval",
        help="accuracy and speed of weights on labelled pictures",
        description="Prints top-1 and top-5 (with six classes or more), the accuracy of each class and images per "
        "second, and writes them to eval.json, with a picture of the confusions, confusion.png. For a detector: COCO's "
        "twelve numbers of boxes and masks, and a picture of what was found, detections.png.",
        epilog="""examples:
  laplacianformer eval --weights runs/demo/model.safetensors --data digits/test
  laplacianformer eval --weights nano.safetensors --data imagenet/ --split validation --workers 8
  laplacianformer eval --data torch/cifar10:downloads
  laplacianformer eval --weights detector.safetensors --data coco/
  laplacianformer eval --weights runs/shapes-maskrcnn/model.safetensors --data shapes

The names of the class folders must be those of the weights.
exit code: 0; 1 if some pictures could not be read (each is named and not counted); 2 for input that can't be used""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_weights(evaluate)
    evaluate.add_argument(
        "--data",
        required=True,
        metavar="[READER:]DIR",
        help="folder or tar with one folder a class, the parent of such a folder, or what train takes",
    )
    evaluate.add_argument(
        "--split",
        default="validation",
        metavar="NAME",
        help="part of it; as in training, validation may be called val, valid, eval or test (default: %(default)s)",
    )
    evaluate.add_argument(
        "--output",
        type=Path,
        default=Path("runs/eval"),
        metavar="DIR",
        help="folder written to (default: %(default)s)",
    )
    evaluate.add_argument("--batch-size", type=_positive, default=64, metavar="N", help="(default: %(default)s)")
    evaluate.add_argument(
        "--workers", type=_count, default=2, metavar="N", help="processes that read pictures (default: %(default)s)"
    )
    _add_device(evaluate)
    evaluate.set_defaults(run=_eval)


def _add_export(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    export = commands.add_parser(
        "export",
        help="write a classifier for places where this package is not",
        description="Writes ONNX, or a compiled package of AOTInductor, for any batch, height and width. What was "
        "written is compared with the model on several sizes, and is kept only if it computes the same. Or a folder "
        "with a model card, which timm loads.",
        epilog="""examples:
  laplacianformer export --weights model.safetensors --format onnx model.onnx
  laplacianformer export --weights model.safetensors --format onnx --int8 --data cifar10/ small.onnx
  laplacianformer export --weights model.safetensors --format pt2 --size 224 224 model.pt2
  laplacianformer export --weights model.safetensors --format hf my-model""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_weights(export)
    export.add_argument("--format", required=True, choices=("onnx", "pt2", "hf"), help="what is written")
    export.add_argument("--int8", action="store_true", help="8-bit weights in linear layers (ONNX)")
    export.add_argument(
        "--size",
        type=int,
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        help="compile for images of this size alone: smaller and faster (pt2; default: any size)",
    )
    export.add_argument("--data", metavar="[READER:]DIR", help="labelled pictures, to measure how the accuracy changes")
    export.add_argument("output", type=Path, metavar="OUT", help="a file that ends with .onnx or .pt2, or a new folder")
    export.set_defaults(run=_export)


def _add_reproduce(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="run a figure or table of the paper",
        description="Runs one experiment, writes its numbers as CSV and a plot, and says whether they agree with the "
        "paper. Trainings that were done already are not done again; a killed command goes on where it was.",
        epilog="""examples:
  laplacianformer reproduce --list
  laplacianformer reproduce lambda --quick
  laplacianformer reproduce lambda --cifar10 cifar10/
  laplacianformer reproduce lambda --imagenet imagenet/
  laplacianformer reproduce detection --coco coco/
  laplacianformer reproduce --page""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reproduce.add_argument("name", nargs="?", metavar="NAME", help="of the experiment")
    reproduce.add_argument("--list", action="store_true", help="name all experiments")
    reproduce.add_argument("--page", action="store_true", help="write docs/reproduction.md from the results")
    scale = reproduce.add_mutually_exclusive_group()
    scale.add_argument("--quick", action="store_true", help="a minute at most, to see that it runs")
    scale.add_argument("--full", action="store_true", help="sized for a machine with two cores (the default)")
    scale.add_argument("--imagenet", metavar="DIR", help="the paper's own scale: ImageNet, for those that train")
    scale.add_argument("--coco", metavar="DIR", help="the paper's own scale: COCO 2017, for detection")
    reproduce.add_argument("--cifar10", metavar="[READER:]DIR", help="CIFAR-10, for experiments that train")
    reproduce.add_argument("--weights", type=Path, metavar="FILE", help="trained weights to look into")
    reproduce.add_argument(
        "--processes", type=_positive, metavar="N", help="trainings at a time (default: one for each core)"
    )
    reproduce.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of results (default: results; runs/quick, runs/imagenet or runs/coco with these options)",
    )
    reproduce.set_defaults(run=_reproduce)


def _add_weights(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="weights file (.safetensors; default: those inside the package, trained on CIFAR-10)",
    )


def _add_device(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1, ... (default: an accelerator, if any)")


# ---- what each command runs ----


def _info(arguments: argparse.Namespace) -> None:
    from laplacianformer.inspect import cost as info

    rows = info.costs(arguments.size)
    if arguments.json:
        print(json.dumps(info.as_json(rows), indent=2))
    else:
        Console().print(info.as_table(rows))


def _demo(arguments: argparse.Namespace) -> None:
    from laplacianformer.commands import demo as command

    command.run(file=arguments.weights, port=arguments.port)


def _train(arguments: argparse.Namespace) -> None:
    from laplacianformer.commands import train as start

    start.train(arguments.recipe, arguments.data, arguments.output, arguments.overrides, resume=arguments.resume)


def _predict(arguments: argparse.Namespace) -> int:
    from laplacianformer.classification import inference as predict

    return predict.run(
        arguments.images,
        file=arguments.weights,
        top=arguments.top,
        as_json=arguments.json,
        attention=arguments.attention,
        query=arguments.query,
        device=arguments.device,
    )


def _detect(arguments: argparse.Namespace) -> int:
    from laplacianformer.detection import inference as detect

    return detect.run(
        arguments.images,
        file=arguments.weights,
        threshold=arguments.threshold,
        output=arguments.output,
        device=arguments.device,
    )


def _eval(arguments: argparse.Namespace) -> int:
    from laplacianformer.classification import evaluation as evaluate

    return evaluate.run(
        file=arguments.weights,
        data=arguments.data,
        split=arguments.split,
        output=arguments.output,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        device=arguments.device,
    )


def _export(arguments: argparse.Namespace) -> None:
    from laplacianformer.commands import export as command

    command.run(
        file=arguments.weights,
        form=arguments.format,
        output=arguments.output,
        int8=arguments.int8,
        size=arguments.size and tuple(arguments.size),
        data=arguments.data,
    )


def _reproduce(arguments: argparse.Namespace) -> None:
    from laplacianformer.experiments import frame

    if arguments.list:
        print("\n".join(f"{name}: {description}" for name, description in frame.EXPERIMENTS.items()))
    elif arguments.page:
        raise InputError("--page is gone: in a clone of the repository, `python docs/reproduction.py` writes the page")
    elif arguments.name is None:
        raise InputError("name an experiment; --list names all")
    else:
        done = frame.reproduce(
            arguments.name,
            output=arguments.output,
            quick=arguments.quick,
            cifar10=arguments.cifar10,
            imagenet=arguments.imagenet,
            coco=arguments.coco,
            weights=arguments.weights,
            processes=arguments.processes,
        )
        print(f"claim: {done.experiment.CLAIM}\nmeasured: {done.outcome.measured}\nverdict: {done.outcome.verdict}")


# ---- how arguments are read ----


def _take(rest: Sequence[str], parsed: argparse.Namespace) -> None:
    """What argparse left over: overrides or pictures that come after an option, or something that nobody knows."""
    end = rest.index("--") if "--" in rest else len(rest)
    wrong = [argument for argument in rest[:end] if argument.startswith("-")] if "takes" in parsed else rest
    if wrong:
        raise InputError(f"unknown argument {wrong[0]}: see laplacianformer {parsed.command} --help")
    if rest:
        getattr(parsed, parsed.takes).extend([*rest[:end], *rest[end + 1 :]])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, at least 1, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    return 0 if text == "0" else _positive(text)


def _port(text: str) -> int:
    port = _positive(text)
    if port > 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 1 to 65535, got {text!r}")
    return port


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {text!r}")
    return share


def _place(text: str) -> tuple[float, float]:
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected X,Y as in 0.3,0.5, got {text!r}") from None
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise argparse.ArgumentTypeError(f"expected X and Y from 0 to 1, got {text!r}")
    return x, y
