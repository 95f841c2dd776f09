"""A detector of torchvision for one image as a graph: what torch.export can trace, for every height and width.

torchvision's own code decides by the values of tensors, which can't be traced. Here boxes that don't count are left to
the non-maximum suppression, an operator of its own that drops them: beside the crops of Mask R-CNN the only place where
lengths depend on values.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms, roi_align

from laplacianformer.ops._tables import tables_made_once

OBJECTS = ("boxes", "labels", "scores", "masks")
# Of the heads, for the comparison with the detector: for every anchor; for every proposal; and the masks of the boxes
# that were found and of the whole image, so that there is always one.
RETINANET_HEADS = ("logits", "deltas")
MASK_RCNN_HEADS = (*RETINANET_HEADS, "proposals", "box_logits", "box_deltas", "mask_boxes", "mask_logits")
PASTED_BORDER = 1  # of zeros around a mask before it is scaled to its box, as in torchvision


@torch.library.custom_op("laplacianformer_export::suppress", mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, groups: Tensor, counts: Tensor, count: int, overlap: float) -> Tensor:
    """Indices of those boxes (N, 4) that non-maximum suppression within each of the groups 0 to count - 1 keeps, by
    falling score. Only boxes where `counts` is True take part."""
    (candidates,) = torch.where(counts)
    return candidates[batched_nms(boxes[candidates], scores[candidates], groups[candidates], overlap)]


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, groups: Tensor, counts: Tensor, count: int, overlap: float) -> Tensor:
    return groups.new_empty(torch.library.get_ctx().new_dynamic_size())


class Seen(NamedTuple):
    """What the heads of a detector find their objects in."""

    images: Tensor  # (1, 3, H, W)
    features: "OrderedDict[str, Tensor]"  # the levels of the pyramid
    limits: Tensor  # (4,): how far a box may reach
    ratios: Tensor  # (4,): of pixels of the picture to those of the image
    rows: Tensor  # of the picture: 0, 1, ...
    columns: Tensor


class DetectorGraph(nn.Module):
    """What a detector finds in an image that was resized, normalised and padded.

    Its inputs are the image (1, 3, H, W), the height and width of it that are not padding (2,), and the numbers of the
    rows and of the columns of the picture that it was made of. Its outputs are boxes, labels, scores and, of Mask
    R-CNN, masks, in pixels of that picture (`objects`), and then what the heads gave (`heads`).
    """

    objects: tuple[str, ...]
    heads: tuple[str, ...]

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, size: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        inside = [torch.arange(length) < limit for length, limit in zip(images.shape[-2:], size, strict=True)]
        with tables_made_once():
            maps = self.model.backbone.maps(images, (inside[0][:, None] & inside[1])[None])
        features = self.model.backbone.pyramid(maps)
        height, width = size.to(images.dtype)
        limits = torch.stack((width, height, width, height))
        original = torch.ones_like(columns).sum(), torch.ones_like(rows).sum()
        ratios = torch.stack((original[0] / width, original[1] / height)).repeat(2)
        return self.find(Seen(images, features, limits, ratios, rows, columns))

    def find(self, seen: Seen) -> tuple[Tensor, ...]:
        raise NotImplementedError


class RetinaNetGraph(DetectorGraph):
    objects, heads = OBJECTS[:3], RETINANET_HEADS

    def find(self, seen: Seen) -> tuple[Tensor, ...]:
        model, levels = self.model, list(seen.features.values())
        outputs = [self.outputs(values) for values in levels]
        classes, found = outputs[0][0].shape[-1], []
        for (logits, deltas), anchors in zip(
            outputs, _anchors(model.anchor_generator, seen.images, levels), strict=True
        ):
            scores, index = logits.sigmoid().flatten().topk(torch.sym_min(model.topk_candidates, logits.numel()))
            anchor = index // classes
            boxes = model.box_coder.decode_single(deltas[anchor], anchors[anchor])
            found.append((_clipped(boxes, seen.limits), scores, index % classes))
        boxes, scores, labels = (torch.cat(each) for each in zip(*found, strict=True))
        kept = suppress(boxes, scores, labels, scores > model.score_thresh, classes, model.nms_thresh)
        kept = kept[: model.detections_per_img]
        kept = kept[torch.where(labels[kept] > 0)[0]]  # outputs for the background are never trained
        logits, deltas = (torch.cat(each) for each in zip(*outputs, strict=True))
        return boxes[kept] * seen.ratios, labels[kept], scores[kept], logits, deltas

    def outputs(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and box deltas for every anchor of a level."""
        head, predicted = self.model.head.classification_head, self.model.head.regression_head
        logits = _per_anchor(head.cls_logits(head.conv(values)), head.num_classes)
        return logits, _per_anchor(predicted.bbox_reg(predicted.conv(values)), 4)


class MaskRCNNGraph(DetectorGraph):
    objects, heads = OBJECTS, MASK_RCNN_HEADS

    def find(self, seen: Seen) -> tuple[Tensor, ...]:
        heads = self.model.roi_heads
        proposals, objectness, deltas = self.proposals(seen)
        box_outputs = heads.box_predictor(heads.box_head(_crops(heads.box_roi_pool, seen.features, proposals)))
        boxes, labels, scores = self.boxes(seen, proposals, *box_outputs)
        # With the whole image: some operators of runtimes don't take an empty batch, where nothing is found.
        cropped = torch.cat((boxes, torch.cat((torch.zeros_like(seen.limits[:2]), seen.limits[2:]))[None]))
        logits = heads.mask_predictor(heads.mask_head(_crops(heads.mask_roi_pool, seen.features, cropped)))
        masks = logits[:-1].sigmoid()
        masks = masks.gather(1, labels[:, None, None, None].expand(-1, 1, *masks.shape[2:]))[:, 0]
        boxes = boxes * seen.ratios
        masks = _pasted(masks, boxes, seen.rows, seen.columns) >= 0.5
        return boxes, labels, scores, masks, objectness, deltas, proposals, *box_outputs, cropped, logits

    def proposals(self, seen: Seen) -> tuple[Tensor, ...]:
        """Boxes from the region proposal network, and what its head gave for every anchor."""
        network, levels, found = self.model.rpn, list(seen.features.values()), []
        outputs = [
            (_per_anchor(logits, 1)[:, 0], _per_anchor(deltas, 4))
            for logits, deltas in zip(*network.head(levels), strict=True)
        ]
        anchors = _anchors(network.anchor_generator, seen.images, levels)
        for level, ((logits, deltas), boxes) in enumerate(zip(outputs, anchors, strict=True)):
            logits, index = logits.topk(torch.sym_min(network.pre_nms_top_n(), logits.shape[0]))
            boxes = _clipped(network.box_coder.decode_single(deltas[index], boxes[index]), seen.limits)
            found.append((boxes, logits.sigmoid(), torch.full_like(index, level)))
        boxes, scores, groups = (torch.cat(each) for each in zip(*found, strict=True))
        counts = (scores >= network.score_thresh) & _large(boxes, network.min_size)
        kept = suppress(boxes, scores, groups, counts, len(outputs), network.nms_thresh)
        objectness, deltas = (torch.cat(each) for each in zip(*outputs, strict=True))
        return boxes[kept[: network.post_nms_top_n()]], objectness, deltas

    def boxes(self, seen: Seen, proposals: Tensor, logits: Tensor, deltas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The boxes that are kept, their labels and their scores."""
        heads, classes = self.model.roi_heads, logits.shape[-1]
        boxes = heads.box_coder.decode_single(deltas, proposals).unflatten(1, (classes, 4))[:, 1:].flatten(0, 1)
        boxes, labels = _clipped(boxes, seen.limits), torch.arange(1, classes).expand(logits.shape[0], -1).flatten()
        scores = logits.softmax(-1)[:, 1:].flatten()
        counts = (scores > heads.score_thresh) & _large(boxes, 1e-2)
        kept = suppress(boxes, scores, labels, counts, classes, heads.nms_thresh)
        kept = kept[: heads.detections_per_img]
        return boxes[kept], labels[kept], scores[kept]


GRAPHS: dict[str, type[DetectorGraph]] = {"mask_rcnn": MaskRCNNGraph, "retinanet": RetinaNetGraph}


def _anchors(generator: Any, images: Tensor, levels: Sequence[Tensor]) -> list[Tensor]:
    """The anchors of each level (N, 4), in the order of the outputs of the heads."""
    found = []
    for level, around_zero in zip(levels, generator.cell_anchors, strict=True):
        y, x = (
            torch.arange(cells) * (length // cells)
            for cells, length in zip(level.shape[-2:], images.shape[-2:], strict=True)
        )
        y, x = y[:, None].expand(-1, x.shape[0]), x.expand(y.shape[0], -1)
        shifts = torch.stack((x, y, x, y), -1).flatten(0, 1)
        found.append((shifts[:, None] + around_zero).flatten(0, 1))
    return found


def _per_anchor(outputs: Tensor, numbers: int) -> Tensor:
    """(1, anchors * numbers, H, W) to (H * W * anchors, numbers)."""
    return outputs[0].flatten(1).mT.reshape(-1, numbers)


def _clipped(boxes: Tensor, limits: Tensor) -> Tensor:
    return boxes.clamp(min=0).minimum(limits)


def _large(boxes: Tensor, least: float) -> Tensor:
    """Whether no side of a box is shorter."""
    return ((boxes[:, 2:] - boxes[:, :2]) >= least).all(1)


def _crops(pool: Any, features: "OrderedDict[str, Tensor]", boxes: Tensor) -> Tensor:
    """The crop of each box from the level for boxes of its size."""
    maps = [features[name] for name in pool.featmap_names]
    rois = torch.cat((torch.zeros_like(boxes[:, :1]), boxes), 1)
    level_of = pool.map_levels([boxes])
    crops, indices = [], []
    for level, (values, scale) in enumerate(zip(maps, pool.scales, strict=True)):
        (index,) = torch.where(level_of == level)
        crops.append(roi_align(values, rois[index], pool.output_size, scale, pool.sampling_ratio))
        indices.append(index)
    return torch.cat(crops)[torch.cat(indices).argsort()]


def _pasted(masks: Tensor, boxes: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Masks (N, M, M), each scaled to its box in a picture: bilinear, as a product with a matrix along each axis."""
    side = masks.shape[-1] + 2 * PASTED_BORDER
    masks = nn.functional.pad(masks, (PASTED_BORDER,) * 4)
    centre, half = (boxes[:, :2] + boxes[:, 2:]) * 0.5, (boxes[:, 2:] - boxes[:, :2]) * 0.5
    half = half * (side / (side - 2 * PASTED_BORDER))
    first, last = (centre - half).long().float(), (centre + half).long().float()
    x, y = (
        _bilinear(positions, first[:, axis, None], last[:, axis, None], side)
        for axis, positions in enumerate((columns, rows))
    )
    return y @ masks @ x.mT


def _bilinear(positions: Tensor, first: Tensor, last: Tensor, side: int) -> Tensor:
    """(N, positions, side): how much of each value of a mask is at a pixel, zero outside of the box."""
    steps = positions - first
    source = ((steps + 0.5) * (side / (last - first + 1)) - 0.5).clamp(0, side - 1)
    weights = (1 - (source[..., None] - torch.arange(side)).abs()).clamp(min=0)
    return weights * ((positions >= first) & (positions <= last))[..., None]
