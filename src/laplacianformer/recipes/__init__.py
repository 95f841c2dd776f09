"""Recipes: one YAML file a run, typed and checked."""

from laplacianformer.classification.recipe import Augment as Augment
from laplacianformer.classification.recipe import Data as Data
from laplacianformer.classification.recipe import Model as Model
from laplacianformer.classification.recipe import Optimise as Optimise
from laplacianformer.classification.recipe import Recipe as Recipe
from laplacianformer.classification.recipe import Run as Run
from laplacianformer.detection.recipe import DetectionAugment as DetectionAugment
from laplacianformer.detection.recipe import DetectionData as DetectionData
from laplacianformer.detection.recipe import DetectionOptimise as DetectionOptimise
from laplacianformer.detection.recipe import DetectionRecipe as DetectionRecipe
from laplacianformer.detection.recipe import Detector as Detector
from laplacianformer.training.recipes import AnyRecipe as AnyRecipe
from laplacianformer.training.recipes import as_yaml as as_yaml
from laplacianformer.training.recipes import load as load
from laplacianformer.training.recipes import names as names
