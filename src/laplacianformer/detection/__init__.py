"""Object detection and instance segmentation: torchvision's detectors on any backbone of timm."""

from laplacianformer.detection.builders import mask_rcnn as mask_rcnn
from laplacianformer.detection.builders import parameter_groups as parameter_groups
from laplacianformer.detection.builders import retinanet as retinanet
from laplacianformer.detection.weights import load_detector as load_detector
from laplacianformer.detection.weights import save_detector as save_detector
