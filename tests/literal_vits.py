"""Vision transformers of other libraries, as their papers and names read.

Weights are random and in double precision; forwards use plain functions.
"""

import torch
from torch.nn import functional

WIDTH, HEADS, DEPTH, PATCH, GRID = 12, 2, 2, 4, 3


def pictures():
    return torch.randn(2, 3, GRID * PATCH, GRID * PATCH).double()


def random_state(shapes):
    return {
        name: torch.randn(shape, dtype=torch.float64) * 0.3
        for name, shape in shapes.items()
    }


def linear_shapes(name, out, inner):
    return {f'{name}.weight': (out, inner), f'{name}.bias': (out,)}


def norm_shapes(name, width=WIDTH):
    return {f'{name}.weight': (width,), f'{name}.bias': (width,)}


def timm_state(scale=False, pooled=False, cls_position=True):
    """State of ``timm.models.vision_transformer.VisionTransformer``.

    Args:
        scale: layer scale.
        pooled: ``global_pool='avg'``, with ``fc_norm`` and no final norm.
        cls_position: False for ``no_embed_class``.
    """
    shapes = {
        'cls_token': (1, 1, WIDTH),
        'pos_embed': (1, GRID**2 + cls_position, WIDTH),
        'patch_embed.proj.weight': (WIDTH, 3, PATCH, PATCH),
        'patch_embed.proj.bias': (WIDTH,),
        **norm_shapes('fc_norm' if pooled else 'norm'),
    }
    for i in range(DEPTH):
        block = f'blocks.{i}'
        shapes |= norm_shapes(f'{block}.norm1') | norm_shapes(f'{block}.norm2')
        shapes |= linear_shapes(f'{block}.attn.qkv', 3 * WIDTH, WIDTH)
        shapes |= linear_shapes(f'{block}.attn.proj', WIDTH, WIDTH)
        shapes |= linear_shapes(f'{block}.mlp.fc1', 2 * WIDTH, WIDTH)
        shapes |= linear_shapes(f'{block}.mlp.fc2', WIDTH, 2 * WIDTH)
        if scale:
            shapes[f'{block}.ls1.gamma'] = (WIDTH,)
            shapes[f'{block}.ls2.gamma'] = (WIDTH,)
    return random_state(shapes)


def huggingface_state(of_module=False):
    """State of ``transformers.ViTModel`` without its pooler.

    Args:
        of_module: the names in memory from transformers 5 on; files have
            kept those of before.
    """
    shapes = {
        'embeddings.cls_token': (1, 1, WIDTH),
        'embeddings.position_embeddings': (1, 1 + GRID**2, WIDTH),
        'embeddings.patch_embeddings.projection.weight': (
            *(WIDTH, 3, PATCH, PATCH),
        ),
        'embeddings.patch_embeddings.projection.bias': (WIDTH,),
        **norm_shapes('layernorm'),
    }
    names = HUGGINGFACE_MODULE if of_module else HUGGINGFACE_FILE
    for i in range(DEPTH):
        block = names['block'].format(i)
        shapes |= norm_shapes(f'{block}.layernorm_before')
        shapes |= norm_shapes(f'{block}.layernorm_after')
        for part in ('query', 'key', 'value', 'out'):
            shapes |= linear_shapes(f'{block}.{names[part]}', WIDTH, WIDTH)
        first, second = f'{block}.{names["fc1"]}', f'{block}.{names["fc2"]}'
        shapes |= linear_shapes(first, 2 * WIDTH, WIDTH)
        shapes |= linear_shapes(second, WIDTH, 2 * WIDTH)
    return random_state(shapes)


HUGGINGFACE_FILE = {
    'block': 'encoder.layer.{}',
    'query': 'attention.attention.query',
    'key': 'attention.attention.key',
    'value': 'attention.attention.value',
    'out': 'attention.output.dense',
    'fc1': 'intermediate.dense',
    'fc2': 'output.dense',
}
HUGGINGFACE_MODULE = {
    'block': 'layers.{}',
    'query': 'attention.q_proj',
    'key': 'attention.k_proj',
    'value': 'attention.v_proj',
    'out': 'attention.o_proj',
    'fc1': 'mlp.fc1',
    'fc2': 'mlp.fc2',
}


class Weights:
    """Layers by the names of a state."""

    def __init__(self, state, eps):
        self.state, self.eps = state, eps

    def linear(self, name, x):
        weight, bias = self.state[f'{name}.weight'], self.state[f'{name}.bias']
        return functional.linear(x, weight, bias)

    def norm(self, name, x):
        weight, bias = self.state[f'{name}.weight'], self.state[f'{name}.bias']
        return functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)

    def patches(self, name, pixels):
        kernel, bias = self.state[f'{name}.weight'], self.state[f'{name}.bias']
        x = functional.conv2d(pixels, kernel, bias, stride=PATCH)
        return x.flatten(2).transpose(1, 2)


def attention(query, key, value):
    """``(B, N, D)`` each, with ``HEADS`` heads side by side."""
    q, k, v = (x.unflatten(-1, (HEADS, -1)) for x in (query, key, value))
    weights = torch.einsum('bqhd,bkhd->bhqk', q, k) / q.shape[-1] ** 0.5
    return torch.einsum('bhqk,bkhd->bqhd', weights.softmax(-1), v).flatten(2)


def timm_features(state, pixels):
    """All tokens ``(B, 1 + N, D)``, or pooled patches ``(B, D)``."""
    net = Weights(state, 1e-6)
    x = net.patches('patch_embed.proj', pixels)
    cls = state['cls_token'].expand(len(x), -1, -1)
    if state['pos_embed'].shape[1] == GRID**2:  # no_embed_class
        x = torch.cat([cls, x + state['pos_embed']], 1)
    else:
        x = torch.cat([cls, x], 1) + state['pos_embed']
    for i in range(DEPTH):
        block = f'blocks.{i}'
        qkv = net.linear(f'{block}.attn.qkv', net.norm(f'{block}.norm1', x))
        out = attention(*qkv.chunk(3, -1))
        out = net.linear(f'{block}.attn.proj', out)
        x = x + out * state.get(f'{block}.ls1.gamma', 1)
        out = net.linear(f'{block}.mlp.fc1', net.norm(f'{block}.norm2', x))
        out = net.linear(f'{block}.mlp.fc2', functional.gelu(out))
        x = x + out * state.get(f'{block}.ls2.gamma', 1)
    if 'fc_norm.weight' in state:
        return net.norm('fc_norm', x[:, 1:].mean(1))
    return net.norm('norm', x)


def huggingface_features(state, pixels, eps=1e-12):
    """Last hidden states ``(B, 1 + N, D)``."""
    net = Weights(state, eps)
    x = net.patches('embeddings.patch_embeddings.projection', pixels)
    cls = state['embeddings.cls_token'].expand(len(x), -1, -1)
    x = torch.cat([cls, x], 1) + state['embeddings.position_embeddings']
    of_file = 'encoder.layer.0.layernorm_before.weight' in state
    names = HUGGINGFACE_FILE if of_file else HUGGINGFACE_MODULE
    for i in range(DEPTH):
        block = names['block'].format(i)
        h = net.norm(f'{block}.layernorm_before', x)
        parts = ('query', 'key', 'value')
        out = attention(*(net.linear(f'{block}.{names[p]}', h) for p in parts))
        x = x + net.linear(f'{block}.{names["out"]}', out)
        h = net.norm(f'{block}.layernorm_after', x)
        h = functional.gelu(net.linear(f'{block}.{names["fc1"]}', h))
        x = x + net.linear(f'{block}.{names["fc2"]}', h)
    return net.norm('layernorm', x)
