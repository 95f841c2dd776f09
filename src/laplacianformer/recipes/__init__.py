"""Recipes: one YAML file a run, typed and checked."""

from laplacianformer.recipes.detection import DetectionAugment as DetectionAugment
from laplacianformer.recipes.detection import DetectionData as DetectionData
from laplacianformer.recipes.detection import DetectionOptimise as DetectionOptimise
from laplacianformer.recipes.detection import DetectionRecipe as DetectionRecipe
from laplacianformer.recipes.detection import Detector as Detector
from laplacianformer.recipes.load import AnyRecipe as AnyRecipe
from laplacianformer.recipes.load import as_yaml as as_yaml
from laplacianformer.recipes.load import load as load
from laplacianformer.recipes.load import names as names
from laplacianformer.recipes.schema import Augment as Augment
from laplacianformer.recipes.schema import Data as Data
from laplacianformer.recipes.schema import Model as Model
from laplacianformer.recipes.schema import Optimise as Optimise
from laplacianformer.recipes.schema import Recipe as Recipe
from laplacianformer.recipes.schema import Run as Run
