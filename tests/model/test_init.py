"""The state at initialisation: signals and gradients of every layer in range, no kernel dead or saturated."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from laplacianformer import LaplacianAttention
from laplacianformer.model._blocks import Block, PatchEmbedding
from tests.model.helpers import NAMES, create, images

# The allowed ranges. The extremes found are 0.02 and 0.5 for C, 1.0 and 1.9 for activations, 2e-4 and 6 (the
# head; 2.2 elsewhere) for gradients relative to their weights.
RANGES = {"kernel": (0.01, 0.9), "activation": (0.9, 2.5), "branch": (0.01, 0.5), "gradient": (5e-5, 10.0)}


def smooth(size):
    """Two images of slow waves: neighbouring tokens, and so their keys, are nearly equal."""
    y, x = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    waves = [torch.stack([torch.sin(2 * x + a), torch.cos(3 * y - a), x * y + a / 4]) for a in range(2)]
    return torch.stack(waves)


class Observed:
    """One training forward and backward of a model, with the statistics of each layer by name."""

    def __init__(self, model, x):
        self.kernel, self.activation, self.branch = {}, {}, {}
        hooks = []
        for path, module in model.named_modules():
            if isinstance(module, LaplacianAttention):
                see = lambda m, args, out, path=path: self.see_kernel(path, m, args, out)
            elif isinstance(module, (Block, PatchEmbedding)):
                see = lambda m, args, out, path=path: self.see_tokens(path, out)
            else:
                continue
            hooks.append(module.register_forward_hook(see))
        F.cross_entropy(model(x), torch.tensor([1, 2])).backward()
        self.gradient = {
            path: (parameter.grad.norm() / parameter.norm()).item()
            for path, parameter in model.named_parameters()
            if parameter.ndim > 1
        }
        model.zero_grad()
        for hook in hooks:
            hook.remove()

    def see_kernel(self, path, module, args, out):
        c = module.factors(*args).c
        if c.shape[-2] == c.shape[-1]:
            c = c[..., ~torch.eye(c.shape[-1], dtype=torch.bool)]
        self.kernel[path] = c.mean().item()
        self.branch[path] = out.std().item()

    def see_tokens(self, path, out):
        self.activation[path] = (out[0] if isinstance(out, tuple) else out).std().item()


@pytest.fixture(scope="module", params=NAMES)
def model(request):
    """In training, where whitening takes the statistics of the batch and not those of batches before."""
    return create(request.param, num_classes=10).train()


@pytest.mark.parametrize("kind", [images, smooth], ids=["random", "smooth"])
@pytest.mark.slow
def test_every_layer_starts_in_range(model, kind):
    # 2 x 2 tokens in the last stage: the smallest grid whose kernel has entries off its diagonal.
    observed = Observed(model, kind(32 if model.num_features == 160 else 64))
    for quantity, (least, most) in RANGES.items():
        values = getattr(observed, quantity)
        assert len(values) > 6
        outside = {path: value for path, value in values.items() if not least <= value <= most}
        assert not outside, quantity


def test_the_head_starts_near_the_uniform_distribution():
    for name in NAMES[:2]:
        loss = F.cross_entropy(create(name)(images(64)), torch.tensor([1, 2]))
        assert loss.item() == pytest.approx(torch.tensor(1000.0).log().item(), abs=0.3)


def test_init_weights_resets_every_parameter():
    """To the same distributions, not the same values: weights are drawn again, biases are zero, norms are one."""
    model = create()
    scales = {name: parameter.std().item() for name, parameter in model.named_parameters() if parameter.ndim > 1}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".norm" not in f".{name}":
                parameter.fill_(7)
    model.init_weights()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            assert parameter.std().item() == pytest.approx(scales[name], rel=0.35), name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith(".weight")))), name


def test_a_learned_landmark_filter_starts_as_the_identity():
    model = create(attention_args={"landmarks": "conv"})
    filters = [m for name, m in model.named_modules() if name.endswith("landmark_filter") and isinstance(m, nn.Conv2d)]
    assert len(filters) == 7
    for module in filters:
        centre = torch.zeros(3, 3)
        centre[1, 1] = 1
        assert torch.equal(module.weight, centre.expand_as(module.weight))
