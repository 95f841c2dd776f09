"""Pictures of a training, of predictions and of attention."""

from laplacianformer.pictures.attention import AttentionRow as AttentionRow
from laplacianformer.pictures.attention import attention_map as attention_map
from laplacianformer.pictures.attention import colours as colours
from laplacianformer.pictures.figure import require as require
from laplacianformer.pictures.predictions import confusion as confusion
from laplacianformer.pictures.predictions import prediction_sheet as prediction_sheet
from laplacianformer.pictures.training import training_curve as training_curve
