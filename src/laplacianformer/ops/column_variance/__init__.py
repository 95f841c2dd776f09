from laplacianformer.ops.column_variance.op import column_variance as column_variance
