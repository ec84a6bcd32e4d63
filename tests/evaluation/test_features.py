import socket

import pytest
import torch
from mmengine.registry import init_default_scope
from torch import nn
from toy_features import (
    ToyDistiller,
    evaluate_in_process,
    evaluate_parts,
    toy_loader,
)

from mim_plugins.evaluation.features import (
    evaluation_mode,
    extract_features,
    network_encoder,
    pixel_encoder,
    sample_indices,
)


@pytest.fixture(autouse=True)
def scope():
    init_default_scope('mmpretrain')
    torch.manual_seed(0)


def pictures(loader):
    images = torch.stack([row['inputs'] for row in loader.dataset])
    return (images.float() - 127.5) / 60


def test_features_are_those_of_the_network_in_evaluation_mode():
    model, loader = ToyDistiller(), toy_loader('train', 11, 4)
    model.train()
    model.teacher.eval()
    modes = [module.training for module in model.modules()]
    for network in ('teacher', 'student'):
        encode = network_encoder(model, network)
        found = extract_features(model, loader, encode)
        assert found.labels.tolist() == [i % 3 for i in range(11)]
        with evaluation_mode(model), torch.no_grad():
            expected = getattr(model, network)(pictures(loader))
        torch.testing.assert_close(found.features, expected)
    assert [module.training for module in model.modules()] == modes


def test_modes_come_back_after_an_error():
    model = ToyDistiller().train()
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert model.training and model.student.drop.training


def test_float32_unless_asked():
    """An autocast around it, as in mixed precision training, is put off."""
    model, loader = ToyDistiller(), toy_loader('train', 6, 3)
    full = extract_features(model, loader)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        again = extract_features(model, loader)
    assert torch.equal(full.features, again.features)
    half = extract_features(model, loader, precision='bf16')
    assert half.features.dtype == torch.float32
    assert not torch.equal(full.features, half.features)
    torch.testing.assert_close(
        half.features, full.features, rtol=0.02, atol=0.05
    )
    with pytest.raises(ValueError, match="precision='half' is not known"):
        extract_features(model, loader, precision='half')


def test_repeats_of_the_sampler_count_once():
    """Three processes round 7 images up to 9; here is the last of them."""
    loader = toy_loader('train', 7, 2)
    loader.sampler.rank, loader.sampler.world_size = 2, 3
    loader.sampler.num_samples, loader.sampler.total_size = 3, 9
    assert sample_indices(loader).tolist() == [2, 5, 1]


def test_without_labels():
    model, loader = ToyDistiller(), toy_loader('train', 5, 2)
    loader.dataset.labels = False
    loader.dataset._fully_initialized = False
    loader.dataset.full_init()
    assert extract_features(model, loader).labels is None
    assert extract_features(model, loader, need_labels=True) is None


def test_a_shuffling_sampler_is_refused():
    loader = torch.utils.data.DataLoader([1, 2], shuffle=True)
    with pytest.raises(ValueError, match='a RandomSampler does not keep'):
        sample_indices(loader)


def test_pixels_are_the_picture_or_its_reduction():
    inputs = torch.rand(2, 3, 8, 12)
    assert torch.equal(pixel_encoder(8)(inputs), inputs.flatten(1))
    assert torch.equal(pixel_encoder(None)(inputs), inputs.flatten(1))
    assert pixel_encoder(4)(inputs).shape == (2, 3 * 4 * 6)
    flat = pixel_encoder(2)(torch.full((1, 3, 8, 8), 5.0))
    torch.testing.assert_close(flat, torch.full((1, 12), 5.0))


class OneNetwork(nn.Module):
    def extract_feat(self, inputs):
        return (inputs.flatten(1) - 1, inputs.flatten(1))


class TokenMaker(nn.Module):
    def extract_feat(self, inputs):
        return inputs


def test_models_with_one_network():
    """mmpretrain's classifiers give a tuple and know no ``network``."""
    inputs = torch.rand(2, 3, 2, 2)
    found = network_encoder(OneNetwork())(inputs)
    assert torch.equal(found, inputs.flatten(1))
    with pytest.raises(TypeError, match='OneNetwork has one network only'):
        network_encoder(OneNetwork(), 'teacher')
    with pytest.raises(TypeError, match='features must be'):
        network_encoder(TokenMaker())(inputs)
    with pytest.raises(TypeError, match='Linear has no extract_feat'):
        network_encoder(nn.Linear(1, 1))


def test_two_processes_find_what_one_finds(tmp_path):
    """Also where a process has no image of its own."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(
        evaluate_in_process, (2, port, str(tmp_path)), nprocs=2
    )
    alone = evaluate_parts()
    assert len(alone['bank']['features']) == 25
    for rank in range(2):
        found = torch.load(tmp_path / f'{rank}.pt')
        for name in ('bank', 'queries', 'tiny'):
            for part in ('features', 'labels'):
                assert torch.equal(found[name][part], alone[name][part])
        assert found['metrics'] == alone['metrics']
        assert found['vector'].tolist() == [0, 1, 0, 1, 2]
