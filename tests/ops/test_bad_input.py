"""Bad input is refused by the public functions, with what was given and what was expected."""

import math

import pytest
import torch

from laplacianformer import ops

X, Y, V, W = torch.zeros(2, 5, 3), torch.zeros(2, 4, 3), torch.zeros(2, 4, 6), torch.eye(4).expand(2, 4, 4)
RHS = torch.zeros(2, 4, 3)

# Each op with valid arguments by name; each entry of the table below replaces one of them.
GOOD = {
    ops.laplacian_kernel: {"x": X, "y": Y, "scale": 4.0},
    ops.gaussian_kernel: {"x": X, "y": Y, "scale": 4.0},
    ops.laplacian_matmul: {"x": X, "y": Y, "values": V, "scale": 4.0},
    ops.newton_schulz: {"w": W, "iterations": 6, "eps": 1e-2},
    ops.newton_schulz_residuals: {"w": W, "iterations": 6, "eps": 1e-2},
    ops.conjugate_gradient: {"w": W, "rhs": RHS, "iterations": 6, "eps": 1e-2},
    ops.ridge_solve: {"w": W, "rhs": RHS, "eps": 1e-2},
    ops.cholesky_solve: {"w": W, "rhs": RHS, "eps": 1e-2},
    ops.inverse_sqrt: {"w": W, "eps": 1e-2},
}
TENSORS = ("x", "y", "values", "w", "rhs")

# The name of an argument, what is passed for it, the exception, and words of its message.
TABLE = [
    *((name, lambda good: good.int(), TypeError, ["must be one of", "float32", "int32"]) for name in TENSORS),
    *((name, lambda good: good.bool(), TypeError, ["torch.bool"]) for name in TENSORS),
    *((name, lambda good: good.to(torch.complex64), TypeError, ["complex64"]) for name in TENSORS),
    *((name, lambda good: good.tolist(), TypeError, ["must be a tensor", "list"]) for name in TENSORS),
    *((name, lambda good: None, TypeError, ["must be a tensor", "NoneType"]) for name in TENSORS),
    *((name, lambda good: good[0, 0], ValueError, ["at least 2 dimensions"]) for name in TENSORS),
    *((name, lambda good: good[0, 0, 0], ValueError, ["at least 2 dimensions", "()"]) for name in TENSORS),
    ("x", lambda good: good[..., :2], ValueError, ["same last dimension", "(2, 5, 2)", "(2, 4, 3)"]),
    ("y", lambda good: good[..., :1], ValueError, ["same last dimension", "(2, 4, 1)"]),
    ("values", lambda good: good[:, :3], ValueError, ["same number of rows", "(2, 4, 3)", "(2, 3, 6)"]),
    ("rhs", lambda good: good[:, :3], ValueError, ["same number of rows", "(2, 4, 4)", "(2, 3, 3)"]),
    ("w", lambda good: good[:, :3], ValueError, ["square", "(2, 3, 4)"]),
    *(("scale", given, ValueError, ["scale", "greater than 0", str(given)]) for given in (0, 0.0, -1, -1e-3)),
    *(("scale", given, ValueError, ["scale", "finite", str(given)]) for given in (math.nan, math.inf, -math.inf)),
    *(("scale", given, TypeError, ["scale", "number"]) for given in (True, "4", None, torch.tensor(4.0), [4.0])),
    *(("iterations", given, ValueError, ["iterations", "at least 1", str(given)]) for given in (0, -3)),
    *(("iterations", given, TypeError, ["iterations", "integer"]) for given in (2.5, 6.0, True, "6", None)),
    ("eps", -1e-3, ValueError, ["eps", "-0.001"]),
    *(("eps", given, ValueError, ["eps", "finite", str(given)]) for given in (math.nan, math.inf)),
    *(("eps", given, TypeError, ["eps", "number"]) for given in (True, "0.01", None)),
]


def bad_values(op, name):
    """Bad values for this argument of the op, each with its exception and words of the message."""
    good = GOOD[op]
    for entry, given, error, words in TABLE:
        if entry == name:
            yield given(good[name]) if callable(given) else given, error, words
    if name in TENSORS and sum(other in TENSORS for other in good) > 1:
        yield good[name].to("meta"), ValueError, ["one device", "meta", "cpu"]
        yield torch.zeros(3, *good[name].shape[1:]), ValueError, ["don't broadcast", "(3,"]


def complaint(op, arguments, error, words):
    """What is wrong with how these arguments are refused, or None."""
    try:
        op(**arguments)
    except error as caught:
        missing = [word for word in (op.__name__, *words) if word not in str(caught)]
        return f"{missing} not in {str(caught)!r}" if missing else None
    except Exception as caught:
        return f"{caught!r} instead of {error.__name__}"
    return "not refused"


@pytest.mark.parametrize(
    ("op", "name"),
    [pytest.param(op, name, id=f"{op.__name__}-{name}") for op, good in GOOD.items() for name in good],
)
def test_a_bad_argument_is_refused_with_a_clear_message(op, name):
    given = list(bad_values(op, name))
    assert len(given) >= 6
    complaints = [(bad, complaint(op, {**GOOD[op], name: bad}, error, words)) for bad, error, words in given]
    assert [(bad, wrong) for bad, wrong in complaints if wrong] == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.newton_schulz(W, start="random"), ["start", "'transpose'", "'identity'", "'random'"]),
        (lambda: ops.newton_schulz(W, start=None), ["start", "None"]),
        (lambda: ops.newton_schulz_residuals(W, start="random"), ["start", "'random'"]),
        (lambda: ops.newton_schulz(W, gradient="none"), ["gradient", "'exact'", "'implicit'", "'none'"]),
        (lambda: ops.newton_schulz(W[:, :0, :0]), ["at least one row", "(2, 0, 0)"]),
        (lambda: ops.newton_schulz(W, backend="gpu"), ["backend", "'gpu'", "reference"]),
        (lambda: ops.laplacian_kernel(X, Y, 4.0, backend="gpu"), ["backend", "'gpu'", "reference"]),
        (lambda: ops.laplacian_matmul(X, Y, V, 4.0, backend="gpu"), ["backend", "'gpu'", "reference"]),
        (lambda: ops.gaussian_kernel(X, Y, 4.0, backend="cpu"), ["backend", "'cpu'", "'reference'"]),
        (lambda: ops.inverse_sqrt(W, 0.0), ["eps", "greater than 0"]),
    ],
)
def test_an_unknown_choice_is_refused_with_a_clear_message(call, words):
    with pytest.raises(ValueError, match=r"must|expected") as caught:
        call()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("op", list(GOOD), ids=lambda op: op.__name__)
def test_good_input_is_accepted(op):
    assert op(**GOOD[op]).isfinite().all()


def test_an_argument_that_is_not_a_tensor_is_named_before_devices_are_compared() -> None:
    with pytest.raises(TypeError, match="values must be a tensor"):
        ops.laplacian_matmul(torch.zeros(2, 3), torch.zeros(2, 3, device="meta"), None, 1.0)
