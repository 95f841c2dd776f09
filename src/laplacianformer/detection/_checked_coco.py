"""The contents of a COCO file, checked entry by entry: errors name the file and the entry."""

from typing import Any

from laplacianformer._util import limits
from laplacianformer._util.errors import InputError
from laplacianformer.detection._masks import area, extent

_Tree = dict[str, Any]
_FAR = 1e9  # pixels; no box or mask is larger
_BEYOND = 10  # how far a polygon may leave the image, in sides of the image; drawing takes time in proportion


def checked_tree(tree: Any, source: str, *, masks: bool) -> tuple[_Tree, list[str]]:
    """Images, annotations and categories, with boxes clipped to their images; and one line per object left out.

    Annotations get new ids from 1 on: to COCO's evaluation, an object with the id 0 is never found.
    """
    for key in ("images", "annotations", "categories"):
        if not isinstance(tree, dict) or not isinstance(tree.get(key), list):
            raise InputError(f"{source} is not a COCO file: expected lists of images, annotations and categories")
    images = _checked_images(tree["images"], source)
    categories = _checked_categories(tree["categories"], source)
    annotations: list[_Tree] = []
    left_out: list[str] = []
    for number, entry in enumerate(tree["annotations"]):
        if not isinstance(entry, dict):
            raise InputError(f"{source}: annotation {number} is not an entry: {limits.shown(entry)}")
        what = f"{source}: annotation {limits.one_line(str(entry.get('id', f'number {number}')))}"
        image, category = entry.get("image_id"), entry.get("category_id")
        if not isinstance(image, int | float) or image not in images:
            raise InputError(f"{what} is of image {limits.shown(image)}, which is not in the file")
        if not isinstance(category, int | float) or category not in categories:
            raise InputError(f"{what} has category {limits.shown(category)}, which is not in the file")
        of = images[int(image)]
        fine = _annotation(entry, of, f"{what} (of {limits.one_line(of['file_name'])})", masks=masks)
        if isinstance(fine, str):
            left_out.append(fine)
        else:
            annotations.append({**fine, "id": len(annotations) + 1})
    kept = {"images": list(images.values()), "annotations": annotations, "categories": list(categories.values())}
    return kept, left_out


def _checked_images(entries: list[Any], source: str) -> dict[int, _Tree]:
    images: dict[int, _Tree] = {}
    names: dict[str, int] = {}
    for number, entry in enumerate(entries):
        fields = entry if isinstance(entry, dict) else {}
        name, sides = fields.get("file_name"), [fields.get("width"), fields.get("height")]
        if not isinstance(fields.get("id"), int) or not isinstance(name, str):
            raise InputError(
                f"{source}: image {number} needs an id (a whole number) and a file_name, got {limits.shown(entry)}"
            )
        said = limits.one_line(name)
        if not 0 <= fields["id"] < 2**63:
            raise InputError(
                f"{source}: {said} has the id {limits.shown(fields['id'])}: expected 0 or more, below 2^63"
            )
        if not all(isinstance(side, int) and side > 0 for side in sides):
            raise InputError(
                f"{source}: {said} needs a width and a height in pixels, "
                f"got {limits.shown(sides[0])} and {limits.shown(sides[1])}"
            )
        if fields["width"] * fields["height"] > limits.MOST_PIXELS:
            raise InputError(
                f"{source}: {said} has {limits.shown(sides[0])} x {limits.shown(sides[1])} pixels: "
                f"at most {limits.MOST_PIXELS} are possible"
            )
        if fields["id"] in images:
            other = limits.one_line(images[fields["id"]]["file_name"])
            raise InputError(f"{source}: {other} and {said} have the same id {fields['id']}")
        if name in names:
            raise InputError(f"{source}: {said} appears twice, with the ids {names[name]} and {fields['id']}")
        images[fields["id"]], names[name] = fields, fields["id"]
    if not images:
        raise InputError(f"{source} has no images")
    return images


def _checked_categories(entries: list[Any], source: str) -> dict[int, _Tree]:
    categories: dict[int, _Tree] = {}
    names = set[str]()
    for entry in entries:
        fields = entry if isinstance(entry, dict) else {}
        number, name = fields.get("id"), fields.get("name")
        if not isinstance(number, int) or not isinstance(name, str) or not name:
            raise InputError(
                f"{source}: a category needs an id (a whole number) and a name (text), got {limits.shown(entry)}"
            )
        if number in categories or name in names:
            raise InputError(f"{source}: the category {limits.shown(name)} (id {limits.shown(number)}) appears twice")
        categories[number] = fields
        names.add(name)
    if not categories:
        raise InputError(f"{source} has no categories")
    return categories


def _annotation(entry: _Tree, image: _Tree, what: str, *, masks: bool) -> _Tree | str:
    """The entry with its box clipped to the image, or the reason why it is left out."""
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(isinstance(length, int | float) for length in box):
        raise InputError(f"{what} needs a bbox of four numbers, got {limits.shown(box)}")
    if entry.get("iscrowd", 0) not in (0, 1):
        raise InputError(f"{what} has iscrowd {limits.shown(entry['iscrowd'])}: expected 0 or 1")
    if not all(_within(length, _FAR) for length in box) or min(box[2:]) <= 0:
        return f"{what} has an empty box: {limits.shown(box)}"
    x0, y0 = max(0.0, box[0]), max(0.0, box[1])
    x1, y1 = min(float(image["width"]), box[0] + box[2]), min(float(image["height"]), box[1] + box[3])
    if x1 <= x0 or y1 <= y0:
        return f"{what} has a box outside of the image: {box}"
    has_area = _within(entry.get("area"), _FAR**2) and entry["area"] >= 0
    fine = {
        "image_id": entry["image_id"],
        "category_id": entry["category_id"],
        "bbox": [x0, y0, x1 - x0, y1 - y0],
        "area": entry["area"] if has_area else (x1 - x0) * (y1 - y0),
        "iscrowd": int(entry.get("iscrowd", 0)),
    }
    if not masks:
        return fine
    segmentation = _segmentation(entry.get("segmentation"), image, what)
    if isinstance(segmentation, str):
        return segmentation
    size = image["height"], image["width"]
    try:
        left, top, right, bottom = extent(segmentation, *size)
        if not has_area:
            fine["area"] = area(segmentation, *size)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        OverflowError,
        MemoryError,
    ) as error:  # whatever wrong text makes the decoder raise
        raise InputError(f"{what} has run lengths that can't be decoded: {limits.reason(error)}") from None
    if min(right, x1) <= max(left, x0) or min(bottom, y1) <= max(top, y0):
        return f"{what} has a mask that misses its box: {box}"
    return {**fine, "segmentation": segmentation}


def _segmentation(given: Any, image: _Tree, what: str) -> Any:
    """Polygons or run lengths that can be used, or the reason why the object is left out."""
    size = [image["height"], image["width"]]
    if isinstance(given, dict):
        counts = given.get("counts")
        if given.get("size") != size or not isinstance(counts, str | list):
            raise InputError(
                f"{what} has run lengths of the size {limits.shown(given.get('size'))}, the image is {size}"
            )
        if isinstance(counts, list) and not all(isinstance(count, int) and count >= 0 for count in counts):
            raise InputError(f"{what} has run lengths that are not whole numbers")
        if isinstance(counts, list) and sum(counts) != size[0] * size[1]:
            raise InputError(
                f"{what} has run lengths of {limits.shown(sum(counts))} pixels, the image has {size[0] * size[1]}"
            )
        return {"size": size, "counts": counts}
    if not isinstance(given, list):
        raise InputError(f"{what} has no segmentation: train RetinaNet, which needs none, or add the masks")
    polygons = [polygon for polygon in given if isinstance(polygon, list) and len(polygon) >= 6]
    if not polygons:
        return f"{what} has no polygon of three corners, [[x, y, x, y, x, y, ...], ...]"
    if any(len(polygon) % 2 or not all(isinstance(value, int | float) for value in polygon) for polygon in polygons):
        raise InputError(f"{what} has a polygon that is not a list of pairs of numbers")
    if not all(_within(value, _BEYOND * max(size)) for polygon in polygons for value in polygon):
        raise InputError(f"{what} has a polygon with corners far outside the image")
    return polygons


def _within(value: Any, bound: float) -> bool:
    """Whether it is a number, not NaN, of at most this magnitude."""
    return isinstance(value, int | float) and -bound <= value <= bound
