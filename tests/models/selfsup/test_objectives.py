"""Which objectives there are: what they see, need and log."""

import copy

import pytest
import torch
from toy_ibot import build_ibot, make_batch, mask_record, objective_configs


def forwards(model, inputs):
    """Names of the networks that run, with the size of their input."""
    seen = []
    for name, backbone in (
        ('student', model.student),
        ('teacher', model.teacher.backbone),
    ):
        run = backbone.forward_tokens

        def counted(x, *args, name=name, run=run):
            seen.append((name, tuple(x.shape[-2:])))
            return run(x, *args)

        backbone.forward_tokens = counted
    model(inputs, mode='loss')
    return sorted(seen)


GLOBAL, LOCAL = (12, 12), (8, 8)


@pytest.mark.parametrize(
    'changes, inputs, expected',
    [
        (
            {},
            {},
            [('student', GLOBAL), ('student', LOCAL), ('teacher', GLOBAL)],
        ),
        # without a [CLS] loss nobody asks for local crops
        ({'cls': None}, {}, [('student', GLOBAL), ('teacher', GLOBAL)]),
        (
            {'cls': None},
            {'masked': ('local',)},
            [('student', LOCAL), ('teacher', LOCAL)],
        ),
        (
            {'patch': None},
            {'ratio': None},
            [('student', GLOBAL), ('student', LOCAL), ('teacher', GLOBAL)],
        ),
    ],
)
def test_only_what_an_objective_needs_is_computed(changes, inputs, expected):
    model = build_ibot(objectives=objective_configs(**changes))
    assert forwards(model, make_batch(**inputs)) == sorted(expected)


def test_objectives_log_below_their_own_names():
    configs = objective_configs()
    both = dict(configs, masked=configs['patch'], patch=None)
    model = build_ibot(objectives=both)
    model.diagnose = True
    keys = set(model(make_batch(), mode='loss'))
    assert {'loss_masked', 'masked_kl', 'masked_target_entropy'} <= keys
    # nothing is masked: nothing to say about masked tokens
    assert 'masked_kl' not in model(make_batch(ratio=0.0), mode='loss')
    with pytest.raises(ValueError, match=r"\['my_loss'\]"):
        build_ibot(objectives=dict(both, my_loss=configs['cls']))


def test_prototypes_of_an_objective_follow_its_tokens_not_its_name():
    configs = objective_configs()
    model = build_ibot(
        head=dict(share='mlp', out_dim=7, patch_out_dim=5),
        objectives=dict(views=configs['cls'], cls=configs['patch']),
    )
    sizes = {
        k: len(v.normalization.centre) for k, v in model.objectives.items()
    }
    assert sizes == dict(views=7, cls=5)
    assert set(model(make_batch(), mode='loss')) == {'loss_views', 'loss_cls'}


def test_entropy_and_kl_are_of_a_masked_token():
    """Crops without masks do not dilute them, as they do the loss."""
    model = build_ibot()
    model.diagnose = True
    inputs = make_batch(batch=2)
    mask = torch.zeros(4, 9, dtype=torch.bool)
    mask[0, :4] = True
    inputs['masks']['global'] = mask_record(mask, (3, 3))
    parts = model(inputs, mode='loss')
    torch.testing.assert_close(
        parts['patch_target_entropy'] + parts['patch_kl'],
        4 * parts['loss_patch'].detach(),
    )
    assert parts['patch_kl'] > 0 and parts['patch_target_entropy'] > 0


def test_an_objective_is_switched_off_by_none():
    model = build_ibot(objectives=objective_configs(patch=None))
    assert set(model(make_batch(ratio=None), mode='loss')) == {'loss_cls'}
    with pytest.raises(ValueError, match='objective'):
        build_ibot(objectives=objective_configs(patch=None, cls=None))


def test_patch_objective_without_masks_says_what_to_set():
    with pytest.raises(ValueError, match='BlockMask'):
        build_ibot()(make_batch(ratio=None), mode='loss')


def test_unmasked_global_crops_feed_the_cls_loss():
    cls = dict(
        objective_configs()['cls'], student_groups=('global_unmasked', 'local')
    )
    torch.manual_seed(0)
    model = build_ibot(
        objectives=objective_configs(cls=cls), unmasked_global=True
    )
    masked = make_batch(ratio=0.5)
    bare = copy.deepcopy(masked)
    bare['masks']['global']['mask'].zero_()
    first, second = (model(x, mode='loss') for x in (masked, bare))
    torch.testing.assert_close(first['loss_cls'], second['loss_cls'])
    assert first['loss_patch'] != second['loss_patch']


def test_masks_on_local_crops_count_every_crop():
    torch.manual_seed(0)
    model = build_ibot()
    inputs = make_batch(masked=('global', 'local'), ratio=0.5)
    both = model(inputs, mode='loss')['loss_patch']
    parts = []
    for group in ('global', 'local'):
        single = dict(inputs, masks={group: inputs['masks'][group]})
        crops = len(inputs['views'][group])
        parts.append(model(single, mode='loss')['loss_patch'] * crops)
    crops = sum(len(views) for views in inputs['views'].values())
    torch.testing.assert_close(both, sum(parts) / crops)


def test_diagnostics_are_there_only_on_request():
    model = build_ibot()
    plain = model(make_batch(), mode='loss')
    assert set(plain) == {'loss_cls', 'loss_patch'}
    assert model.assignments.shape == (3,)
    model.diagnose = True
    extra = set(model(make_batch(), mode='loss')) - set(plain)
    assert extra >= {
        'cls_target_entropy', 'cls_kl', 'cls_prototypes_used',
        'patch_target_entropy', 'patch_kl', 'feature_rank', 'feature_std',
    }  # fmt: skip
