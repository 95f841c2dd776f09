"""The Laplacian kernel as ONNX functions: tile by tile, so that memory is bounded at every size.

A tile of a_i and b_j in all d columns has at most TILE_NUMBERS floats. Runtimes move it through memory for every
operation, so there are only two, by |a - b| = 2 max(a, b) - a - b: the maximum, along the longer of the two, and its
sum as a matrix product. What a and b have in common is subtracted from both first, or digits would be lost.

Shapes: g groups of s matrices, r tiles of n rows of x, c tiles of m rows of y, d columns, v columns of the values.
"""

from onnxscript import FLOAT, graph, script
from onnxscript import opset18 as op
from onnxscript.values import Opset

DOMAIN = Opset("laplacianformer", 1)
TILE_NUMBERS = 1 << 20  # 4 MB: larger tiles leave the cache, smaller ones cost more calls
TILE_COLUMNS = 512


@script(DOMAIN, default_opset=op)
def CeilDivide(a, b):
    return (a + b - op.Constant(value_ints=[1])) / b


@script(DOMAIN, default_opset=op)
def Tiling(x, y):
    """g, s, r, n, c, m: about equal parts."""
    one = op.Constant(value_ints=[1])
    width = op.Shape(x, start=-1)
    rows = op.Shape(x, start=-2, end=-1)
    columns = op.Shape(y, start=-2, end=-1)
    matrices = op.Size(x) / (rows * width)
    pairs = op.Max(op.Constant(value_ints=[TILE_NUMBERS]) / width, one)
    c = CeilDivide(columns, op.Constant(value_ints=[TILE_COLUMNS]))
    m = CeilDivide(columns, c)
    r = CeilDivide(rows, op.Max(pairs / m, one))
    n = CeilDivide(rows, r)
    g = CeilDivide(matrices, op.Max(pairs / (n * m), one))
    s = CeilDivide(matrices, g)
    return g, s, r, n, c, m


@script(DOMAIN, default_opset=op)
def Split(x, g, s, tiles, length):
    """(..., N, d) -> (g, tiles, s, length, d), padded with zeros."""
    width = op.Shape(x, start=-1)
    flat = op.Reshape(x, op.Concat(op.Constant(value_ints=[-1]), op.Shape(x, start=-2), axis=0))
    missing = op.Concat(g * s, tiles * length, width, axis=0) - op.Shape(flat)
    filled = op.Pad(flat, op.Concat(op.Constant(value_ints=[0, 0, 0]), missing, axis=0))
    return op.Transpose(op.Reshape(filled, op.Concat(g, s, tiles, length, width, axis=0)), perm=[0, 2, 1, 3, 4])


@script(DOMAIN, default_opset=op)
def RowTiles(x, g, s, r, n, c):
    """(..., N, d) -> (g * r * c, s, n, d)."""
    tiles = op.Unsqueeze(Split(x, g, s, r, n), op.Constant(value_ints=[2]))
    repeated = op.Expand(tiles, op.Concat(g, r, c, s, n, op.Shape(x, start=-1), axis=0))
    return op.Reshape(repeated, op.Concat(g * r * c, s, n, op.Shape(x, start=-1), axis=0))


@script(DOMAIN, default_opset=op)
def ColumnTiles(y, g, s, r, c, m):
    """(..., M, d) -> (g * r * c, s, m, d)."""
    tiles = op.Unsqueeze(Split(y, g, s, c, m), op.Constant(value_ints=[1]))
    repeated = op.Expand(tiles, op.Concat(g, r, c, s, m, op.Shape(y, start=-1), axis=0))
    return op.Reshape(repeated, op.Concat(g * r * c, s, m, op.Shape(y, start=-1), axis=0))


@script(DOMAIN, default_opset=op)
def Centred(x, y):
    """Both without the mean row of y: distances stay as they are."""
    mean = op.ReduceMean(y, op.Constant(value_ints=[-2]), keepdims=1)
    return x - mean, y - mean


@script(DOMAIN, default_opset=op)
def Tile(a, b, factor):
    """exp(-factor |a_i - b_j|_1): (s, n, d), (s, m, d) -> (s, n, m); b should be the longer."""
    width = op.Shape(a, start=-1)
    one = op.Constant(value_ints=[1])
    a_columns = op.Transpose(a, perm=[0, 2, 1])
    b_columns = op.Transpose(b, perm=[0, 2, 1])
    largest = op.Max(
        op.Unsqueeze(a_columns, op.Constant(value_ints=[3])), op.Unsqueeze(b_columns, op.Constant(value_ints=[2]))
    )
    row = op.Expand(factor, op.Concat(one, width, axis=0))
    column = op.Expand(factor, op.Concat(width, one, axis=0))
    sums = op.MatMul(a, column) + op.MatMul(row, b_columns)
    largest_sums = op.MatMul(row, op.Reshape(largest, op.Constant(value_ints=[0, 0, -1])))
    return op.Exp(sums - op.Reshape(largest_sums, op.Shape(sums)) * op.Constant(value_float=2.0))


@script(DOMAIN, default_opset=op)
def Cut(whole, size):
    """The first entries of (matrices, rows, columns), as a tensor of this size."""
    last_two = op.Slice(size, op.Constant(value_ints=[-2]), op.Constant(value_ints=[9999]))
    matrices = op.ReduceProd(op.Slice(size, op.Constant(value_ints=[0]), op.Constant(value_ints=[-2])), keepdims=1)
    return op.Reshape(op.Slice(whole, op.Constant(value_ints=[0, 0, 0]), op.Concat(matrices, last_two, axis=0)), size)


@script(DOMAIN, default_opset=op)
def LaplacianKernel(x: FLOAT, y: FLOAT, scale: float) -> FLOAT:
    """exp(-|x_i - y_j|_1 / scale): (..., N, d), (..., M, d) -> (..., N, M)."""
    g, s, r, n, c, m = Tiling(x, y)
    x_centred, y_centred = Centred(x, y)
    x_tiles = RowTiles(x_centred, g, s, r, n, c)
    y_tiles = ColumnTiles(y_centred, g, s, r, c, m)
    factor = op.Reciprocal(op.Constant(value_float=scale))

    @graph()
    def kernel(a, b):
        return Tile(a, b, factor)

    parts = op.Scan(x_tiles, y_tiles, body=kernel, num_scan_inputs=2)
    ordered = op.Transpose(op.Reshape(parts, op.Concat(g, r, c, s, n, m, axis=0)), perm=[0, 3, 1, 4, 2, 5])
    whole = op.Reshape(ordered, op.Concat(g * s, r * n, c * m, axis=0))
    return Cut(whole, op.Concat(op.Shape(x, start=0, end=-1), op.Shape(y, start=-2, end=-1), axis=0))


@script(DOMAIN, default_opset=op)
def LaplacianMatmul(x: FLOAT, y: FLOAT, values: FLOAT, scale: float) -> FLOAT:
    """LaplacianKernel(x, y) @ values: (..., N, d), (..., M, d), (..., M, v) -> (..., N, v)."""
    g, s, r, n, c, m = Tiling(x, y)
    x_centred, y_centred = Centred(x, y)
    x_tiles = RowTiles(x_centred, g, s, r, n, c)
    y_tiles = ColumnTiles(y_centred, g, s, r, c, m)
    value_tiles = ColumnTiles(values, g, s, r, c, m)
    factor = op.Reciprocal(op.Constant(value_float=scale))

    @graph()
    def along_y(a, b, v):
        return op.MatMul(Tile(a, b, factor), v)

    @graph()
    def along_x(a, b, v):
        return op.MatMul(op.Transpose(Tile(b, a, factor), perm=[0, 2, 1]), v)

    if n < m:
        parts = op.Scan(x_tiles, y_tiles, value_tiles, body=along_y, num_scan_inputs=3)
    else:
        parts = op.Scan(x_tiles, y_tiles, value_tiles, body=along_x, num_scan_inputs=3)
    width = op.Shape(values, start=-1)
    by_tile = op.Reshape(parts, op.Concat(g, r, c, s, n, width, axis=0))
    ordered = op.Transpose(op.ReduceSum(by_tile, op.Constant(value_ints=[2]), keepdims=0), perm=[0, 2, 1, 3, 4])
    whole = op.Reshape(ordered, op.Concat(g * s, r * n, width, axis=0))
    return Cut(whole, op.Concat(op.Shape(x, start=0, end=-1), width, axis=0))


FUNCTIONS = (CeilDivide, Tiling, Split, RowTiles, ColumnTiles, Centred, Tile, Cut, LaplacianKernel, LaplacianMatmul)
