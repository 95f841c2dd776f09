from laplacianformer.ops.rotate.op import rotate as rotate
