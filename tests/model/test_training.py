"""What training code asks of a timm model: parameter groups, layer decay, gradient checkpointing."""

import copy
import threading

import pytest
import timm.optim
import torch
from timm.models import group_parameters

from laplacianformer import ops
from laplacianformer.ops._backend import Backends
from tests.model.helpers import NAMES, PeakBytes, create, gradients, images


def names_of(model, groups):
    """(name, group) of every parameter in optimiser groups; a parameter in two groups comes twice."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(parameter)], group) for group in groups for parameter in group["params"]]


@pytest.mark.parametrize("factory", [timm.optim.param_groups_weight_decay, timm.optim.param_groups_layer_decay])
def test_weights_decay_and_norms_biases_and_head_gains_do_not(factory):
    model = create(attention_args={"gain": "learned"})
    groups = factory(model, weight_decay=0.05, no_weight_decay_list=model.no_weight_decay())
    decays = {name: group["weight_decay"] for name, group in names_of(model, groups)}
    assert set(decays) == {name for name, _ in model.named_parameters()}
    for name, decay in decays.items():
        exempt = name.endswith((".bias", ".gain")) or ".norm" in f".{name}"
        assert decay == (0.0 if exempt else 0.05), name


@pytest.mark.parametrize("name", NAMES)
def test_layer_decay_takes_every_parameter_once_and_grows_towards_the_head(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    pairs = names_of(model, timm.optim.param_groups_layer_decay(model, layer_decay=0.5))
    assert sorted(parameter for parameter, _ in pairs) == sorted(parameter for parameter, _ in model.named_parameters())
    scales = {parameter: group["lr_scale"] for parameter, group in pairs}
    assert {scales["head.weight"], scales["head.bias"]} == {1.0}

    # In the order of the forward pass: stem, then each block (the patch embedding of a stage with its first).
    expected = [scales["stages.0.embedding.proj.weight"]]
    for stage, module in enumerate(model.stages):
        for block in range(len(module.blocks)):
            prefixes = [f"stages.{stage}.blocks.{block}."]
            if block == 0 and stage > 0:
                prefixes.append(f"stages.{stage}.embedding.")
            found = {scale for parameter, scale in scales.items() if parameter.startswith(tuple(prefixes))}
            assert len(found) == 1, prefixes
            expected.append(found.pop())
    assert {scales["norm.weight"], scales["norm.bias"]} == {expected[-1]}
    ratios = [after / before for before, after in zip(expected, [*expected[1:], 1.0], strict=True)]
    assert ratios == pytest.approx([2.0] * len(expected))


def test_coarse_groups_are_stem_stages_and_head():
    model = create()
    layers = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert layers["stages.0.embedding.proj.weight"] == 0
    for stage in range(4):
        members = {layer for name, layer in layers.items() if name.startswith(f"stages.{stage}.blocks.")}
        assert members == {stage + 1}
    assert layers["norm.weight"] == layers["stages.3.blocks.0.norm1.weight"] == 4
    assert layers["head.weight"] == 5


def test_timm_optimiser_with_layer_decay_trains():
    model, x = create(num_classes=3).train(), images(32, batch=6)
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    optimiser = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.8)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(model(x), targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("arguments", [{}, {"drop_path_rate": 0.3}, {"attention": "softmax"}, {"features_only": True}])
def test_checkpointing_changes_no_bit(arguments):
    """Outputs, gradients and running whitening statistics, over two steps."""
    plain = create(**arguments).train()
    saving = copy.deepcopy(plain)
    saving.set_grad_checkpointing() if "features_only" not in arguments else saving.model.set_grad_checkpointing()
    for step in range(2):
        outputs = []
        for model in (plain, saving):
            torch.manual_seed(step)
            out = model(images(32 + 16 * step))
            out = out if isinstance(out, torch.Tensor) else torch.cat([map_.flatten() for map_ in out])
            out.square().sum().backward()
            outputs.append(out)
        assert torch.equal(*outputs)
    for name, gradient in gradients(plain).items():
        assert torch.equal(gradient, gradients(saving)[name]), name
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, dict(saving.named_buffers())[name]), name


@pytest.mark.parametrize("passes", [1, 2])
def test_a_block_is_recomputed_on_the_backend_of_its_forward(passes, monkeypatch):
    """Also in a second backward pass, after the block of `use_backend` and in another thread."""
    seen = []
    choose = Backends.choose
    monkeypatch.setattr(
        Backends, "choose", lambda self, name, *tensors: seen.append(name) or choose(self, name, *tensors)
    )
    model = create().train()
    model.set_grad_checkpointing()
    with ops.use_backend("reference"):
        loss = model(images(32)).sum()

    def backward():
        for _ in range(passes):
            loss.backward(retain_graph=True)

    forward_calls = len(seen)
    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    assert len(seen) > forward_calls > 0
    assert set(seen) == {"reference"}


def test_checkpointing_in_several_threads_counts_every_batch():
    models = [create().train() for _ in range(2)]

    def train(model):
        model.set_grad_checkpointing()
        for _ in range(5):
            model(images(32)).sum().backward()

    threads = [threading.Thread(target=train, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        counts = [buffer.item() for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]
        assert set(counts) == {5}


@pytest.mark.slow
def test_checkpointing_compiles_and_counts_each_batch_once():
    plain = create(depths=(1,), embed_dims=(32,), num_heads=(1,), mlp_ratios=(2,)).train()
    saving = copy.deepcopy(plain)
    saving.set_grad_checkpointing()
    out = torch.compile(saving, backend="aot_eager", fullgraph=True)(images(32))
    torch.testing.assert_close(out, plain(images(32)))
    out.sum().backward()
    for name, buffer in plain.named_buffers():
        torch.testing.assert_close(dict(saving.named_buffers())[name], buffer)


def test_checkpointing_saves_memory_and_can_be_switched_off():
    model, x = create(depths=(2, 2, 4, 2), num_classes=0).train(), images(128)
    peaks = {False: [], True: []}
    for enable in (False, True, False):
        model.set_grad_checkpointing(enable)
        with PeakBytes(model) as record:
            model(x).sum().backward()
        model.zero_grad()
        peaks[enable].append(record.peak)
    assert peaks[False][0] == peaks[False][1]
    assert peaks[True][0] < 0.5 * peaks[False][0]
