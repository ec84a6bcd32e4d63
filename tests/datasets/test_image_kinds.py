"""A test for each row of the table in mim_plugins/datasets/README.md."""

import io
import re
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from mmpretrain.datasets import CustomDataset
from PIL import Image
from torchvision.io import decode_image

from mim_plugins.datasets import LoadImage, ViewDataset
from mim_plugins.datasets.source import count_left_out
from mim_plugins.datasets.transforms import UnreadableImage

PAGE = Path(__file__).parents[2] / 'mim_plugins' / 'datasets' / 'README.md'
ALPHA = np.array([[0, 255, 128, 0], [255, 255, 0, 64]], np.uint8)
ROWS = {}


def row(name):
    """Make a function the test of a row of the table."""

    def register(function):
        ROWS[name] = function
        return function

    return register


def test_the_page_has_a_row_for_each_test_and_the_reverse():
    table = PAGE.read_text().split('|---|---|\n')[1].split('\n\n')[0]
    names = [line.split(' | ')[0].strip('| ') for line in table.splitlines()]
    assert sorted(names) == sorted(ROWS)


def gradient(height=12, width=20):
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 12, y * 20, x + y], -1) % 256
    return Image.fromarray(pixels.astype(np.uint8))


def load(path, **options):
    loaded = LoadImage(array=True, **options)({'img_path': str(path)})['img']
    assert loaded.dtype == np.uint8
    return loaded.astype(int)


def save(image, path, **options):
    image.save(path, **options)
    return path


def encoded(image, kind, **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def refuse(path, reason):
    """The file is unreadable, and the error says which one and why."""
    with pytest.raises(UnreadableImage) as caught:
        load(path)
    assert caught.value.path == str(path)
    assert re.search(reason, caught.value.reason)
    assert str(path) in str(caught.value)


def folder_of(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        suffix = path.suffix.lower().replace('.jpg', '.jpeg')
        if suffix in ('.jpeg', '.png') and not path.name.startswith('.'):
            path.write_bytes(encoded(gradient(), suffix[1:]))
        else:
            path.write_bytes(b'something else')
    return root


def read_folder(root, **options):
    """Names and labels that a data set finds, and what it left out."""
    source = CustomDataset(data_root=str(root), **options)
    found = []
    for record in (source.get_data_info(i) for i in range(len(source))):
        load(record['img_path'])
        name = str(Path(record['img_path']).relative_to(root))
        found.append((name, record.get('gt_label')))
    return found, dict(count_left_out(source))


@row('grey')
def grey(folder):
    image = gradient().convert('L')
    expected = np.array(image)[..., None].repeat(3, -1)
    for name in ('a.png', 'a.pgm'):
        np.testing.assert_array_equal(
            load(save(image, folder / name)), expected
        )


@row('grey + alpha')
@row('RGBA')
def transparency(folder):
    for mode in ('LA', 'RGBA'):
        image = Image.new('RGB', (4, 2), (0, 0, 0)).convert(mode)
        image.putalpha(Image.fromarray(ALPHA))
        path = save(image, folder / 'a.png')
        on_white = np.repeat(255 - ALPHA[..., None].astype(int), 3, -1)
        assert np.abs(load(path) - on_white).max() <= 1
    kept = load(path, channels=4)
    np.testing.assert_array_equal(kept[..., 3], ALPHA)
    assert not kept[..., :3].any()


@row('palette')
def palette(folder):
    image = gradient().quantize(16)
    path = save(image, folder / 'a.png')
    assert Image.open(path).mode == 'P'
    np.testing.assert_array_equal(load(path), np.array(image.convert('RGB')))


@row('palette with transparency')
def transparent_palette(folder):
    image = Image.fromarray(np.array([[0, 1], [1, 2]], np.uint8)).convert('P')
    image.putpalette([9, 8, 7, 200, 100, 50, 1, 2, 3])
    white, colour, dark = [255] * 3, [200, 100, 50], [1, 2, 3]
    for name in ('a.png', 'a.gif'):
        path = save(image, folder / name, transparency=0)
        assert load(path).tolist() == [[white, colour], [colour, dark]]
    # an alpha for each colour, as PNG has it
    path = save(image, folder / 'b.png', transparency=bytes([0, 255, 0]))
    assert load(path).tolist() == [[white, colour], [colour, white]]


@row('CMYK')
def cmyk(folder):
    image = gradient().convert('CMYK')
    path = save(image, folder / 'a.tif')
    np.testing.assert_array_equal(load(path), np.array(gradient()))


@row('CMYK JPEG of Adobe')
def adobe_cmyk(folder):
    image = Image.new('CMYK', (16, 16), (0, 255, 255, 0))  # red ink
    path = save(image, folder / 'a.jpg', quality=95)
    head = path.read_bytes()
    assert b'Adobe' in head and Image.open(path).mode == 'CMYK'
    assert np.abs(load(path) - [255, 0, 0]).max() <= 3


@row('16-bit grey')
def grey_16_bit(folder):
    levels = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    expected = np.array([[0, 0, 1, 1, 128, 255]])[..., None]
    for name in ('a.png', 'a.tif'):
        path = save(Image.fromarray(levels), folder / name)
        np.testing.assert_array_equal(load(path, channels=1), expected)
        np.testing.assert_array_equal(load(path), expected.repeat(3, -1))


def png(width, height, depth, colour, rows):
    """A PNG file, written by hand."""
    chunks = (
        (b'IHDR', struct.pack('>2I5B', width, height, depth, colour, 0, 0, 0)),
        (b'IDAT', zlib.compress(rows)),
        (b'IEND', b''),
    )
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(data))
        + kind
        + data
        + struct.pack('>I', zlib.crc32(kind + data))
        for kind, data in chunks
    )


@row('16-bit RGB')
def rgb_16_bit(folder):
    levels = np.array([[0, 40000, 65535], [256, 511, 1]], '>u2')
    rows = b'\0' + levels.tobytes()
    (folder / 'a.png').write_bytes(png(2, 1, 16, 2, rows))
    assert load(folder / 'a.png').tolist() == [[[0, 156, 255], [1, 1, 0]]]


@row('32-bit or floating-point levels')
def wide_levels(folder):
    refuse(
        save(Image.fromarray(np.ones((2, 2), 'f')), folder / 'a.tif'),
        'floating-point',
    )
    refuse(
        save(Image.fromarray(np.full((2, 2), 70000, 'i')), folder / 'b.tif'),
        '16 bits',
    )


def tiff(pixels, photometric, extra):
    """An uncompressed TIFF of uint8 (H, W, C), written by hand."""
    height, width, bands = pixels.shape
    data = pixels.tobytes()
    bits = struct.pack(f'<{bands}H', *[8] * bands)
    meanings = struct.pack('<4H', 0, 0, 0, 0)  # of the extra bands: none
    start = 8 + len(data)
    entries = [
        (256, 3, 1, width),
        (257, 3, 1, height),
        (258, 3, bands, start),
        (259, 3, 1, 1),
        (262, 3, 1, photometric),
        (273, 4, 1, 8),
        (277, 3, 1, bands),
        (278, 3, 1, height),
        (279, 4, 1, len(data)),
    ]
    if extra:
        inline = extra <= 2
        place = 0 if inline else start + len(bits)
        entries.append((338, 3, extra, place))
    directory = struct.pack('<H', len(entries))
    directory += b''.join(struct.pack('<2H2I', *entry) for entry in entries)
    head = b'II*\0' + struct.pack('<I', start + len(bits) + len(meanings))
    return head + data + bits + meanings + directory + bytes(4)


@row('TIFF with more bands than Pillow reads')
def bands_of_tiff(folder):
    pixels = np.arange(2 * 2 * 6, dtype=np.uint8).reshape(2, 2, 6)
    path = folder / 'a.tif'
    path.write_bytes(tiff(pixels[..., :3], 2, extra=0))
    np.testing.assert_array_equal(load(path), pixels[..., :3])
    for bands in (4, 5, 6):  # Pillow gives the first three
        path.write_bytes(tiff(pixels[..., :bands], 2, extra=bands - 3))
        with Image.open(path) as image:
            assert image.mode == 'RGB'
        refuse(path, rf'{bands} bands, of which Pillow reads 3: .*\.npy')
    path.write_bytes(tiff(pixels, 1, extra=5))
    refuse(path, 'cannot identify')


def animation(folder, suffix):
    frames = [Image.new('RGB', (8, 6), c) for c in ('red', 'blue', 'lime')]
    path = folder / f'a.{suffix}'
    options = {'lossless': True} if suffix == 'webp' else {}
    save(
        frames[0],
        path,
        save_all=True,
        append_images=frames[1:],
        duration=20,
        **options,
    )
    assert Image.open(path).n_frames == 3
    assert load(path).reshape(-1, 3).tolist() == [[255, 0, 0]] * 48


for _suffix, _name in (('gif', 'GIF'), ('png', 'PNG'), ('webp', 'WebP')):
    row(f'animated {_name}')(
        lambda folder, suffix=_suffix: animation(folder, suffix)
    )


@row('EXIF orientation')
def orientation(folder):
    for turn in range(9):
        exif = Image.Exif()
        if turn:
            exif[0x0112] = turn
        path = save(gradient(), folder / 'a.jpg', exif=exif, quality=95)
        data = torch.frombuffer(
            bytearray(path.read_bytes()), dtype=torch.uint8
        )
        upright = decode_image(data, apply_exif_orientation=True)
        assert upright.shape[1:] == ((12, 20) if turn < 5 else (20, 12))
        difference = np.abs(load(path) - upright.permute(1, 2, 0).numpy())
        assert difference.max() <= 2  # two decoders of JPEG
        path = save(gradient(), folder / 'a.png', exif=exif)
        assert load(path).shape == (*upright.shape[1:], 3)


@row('damaged EXIF')
def damaged_exif(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = 'a description'
    whole = exif.tobytes()
    blocks = [b'Exif\0\0garbage', whole[: len(whole) // 2]]
    rng = np.random.default_rng(0)
    for _ in range(60):
        block = bytearray(whole)
        for place in rng.integers(6, len(block), 3):
            block[place] = rng.integers(256)
        blocks.append(bytes(block))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # Pillow's, of the damage
        for block in blocks:
            path = save(gradient(), folder / 'a.jpg', exif=block)
            assert load(path).shape in ((12, 20, 3), (20, 12, 3))


@row('1 x 500 pixels')
def thin(folder):
    for size in ((500, 1), (1, 500)):
        pixels = np.arange(1500, dtype=np.int64).reshape(*size, 3) % 256
        image = Image.fromarray(pixels.astype(np.uint8))
        path = save(image, folder / 'a.png')
        np.testing.assert_array_equal(load(path), pixels)
        dataset = ViewDataset(
            {
                'type': 'CustomDataset',
                'data_root': str(folder),
                'with_label': False,
            },
            {'global': {'size': 16, 'num': 2}},
        )
        views = dataset[0]['inputs']['views']['global']
        assert [tuple(view.shape) for view in views] == [(3, 16, 16)] * 2


@row('truncated')
def truncated(folder):
    for kind in ('JPEG', 'PNG', 'WEBP'):
        data = encoded(gradient(64, 64), kind)
        path = folder / f'a.{kind.lower()}'
        path.write_bytes(data[: len(data) // 2])
        refuse(path, 'truncated|decoder')


@row('empty (0 bytes)')
def empty(folder):
    for name in ('a.jpg', 'a.npy'):
        (folder / name).touch()
        refuse(folder / name, 'cannot identify|magic string')


@row('no image at all')
def no_image(folder):
    (folder / 'a.jpg').write_text('<html>not found</html>')
    refuse(folder / 'a.jpg', 'cannot identify')


@row('missing')
def missing(folder):
    refuse(folder / 'a.jpg', 'No such file')


@row('decompression bomb')
def bomb(folder):
    (folder / 'a.png').write_bytes(png(20000, 20000, 1, 0, b''))
    refuse(folder / 'a.png', 'decompression bomb')


@row('`.npy` array')
def npy(folder):
    path = folder / 'a.npy'
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 6), np.uint8)
    np.save(path, pixels)
    np.testing.assert_array_equal(load(path, channels=6), pixels)
    np.save(path, np.asfortranarray(pixels))
    np.testing.assert_array_equal(load(path, channels=6), pixels)
    np.save(path, pixels.astype(np.uint16) * 257)
    np.testing.assert_array_equal(load(path, channels=6), pixels)
    np.save(path, pixels[..., 0])
    np.testing.assert_array_equal(load(path, channels=1), pixels[..., :1])
    np.save(path, pixels[..., :3])
    np.testing.assert_array_equal(load(path), pixels[..., :3])
    for wrong, reason in (
        (pixels, r'shape \(3, 4, 6\), not \(H, W, 3\)'),
        (pixels[..., :3].astype(float), 'float64, neither uint8 nor uint16'),
        (pixels[:0, :, :3], r'shape \(0, 4, 3\)'),
    ):
        np.save(path, wrong)
        refuse(path, reason)
    np.save(path, np.array([[{}]]), allow_pickle=True)
    refuse(path, 'allow_pickle=False')


@row('upper-case extension')
def upper_case(folder):
    names = ('x/a.JPG', 'x/b.JPEG', 'x/c.PNG', 'x/d.Jpg')
    found, left_out = read_folder(folder_of(folder, *names))
    assert found == [(name, 0) for name in names] and not left_out


@row('stray file')
def stray(folder):
    folder_of(folder, 'x/a.png', 'x/Thumbs.db', 'x/n.txt', 'x/m.TXT', 'x/no')
    found, left_out = read_folder(folder)
    assert found == [('x/a.png', 0)]
    assert left_out == {'.txt': 2, '.db': 1, 'without an extension': 1}


@row('hidden file')
def hidden(folder):
    folder_of(folder, 'x/a.png', 'x/.DS_Store', 'x/._a.png', '.DS_Store')
    found, left_out = read_folder(folder)
    assert found == [('x/a.png', 0)] and left_out == {'hidden': 3}


@row('broken link')
def broken_link(folder):
    folder_of(folder, 'x/a.png', 'elsewhere/b.png')
    (folder / 'x' / 'c.png').symlink_to(folder / 'nowhere.png')
    (folder / 'x' / 'd.png').symlink_to(folder / 'elsewhere' / 'b.png')
    found, left_out = read_folder(folder, with_label=False)
    assert [name for name, _ in found] == [
        'elsewhere/b.png', 'x/a.png', 'x/d.png'
    ]  # fmt: skip
    assert left_out == {'broken link': 1}


@row('folder named like an image')
def image_folder(folder):
    folder_of(folder, 'x/a.png', 'x/b.png/c.jpg')
    found, left_out = read_folder(folder)
    assert found == [('x/a.png', 0), ('x/b.png/c.jpg', 0)] and not left_out


@row('nested folders')
def nested(folder):
    folder_of(folder, 'x/1/2/a.png', 'x/b.png', 'y/1/c.png')
    found, _ = read_folder(folder)
    assert found == [('x/1/2/a.png', 0), ('x/b.png', 0), ('y/1/c.png', 1)]


@row('flat folder without classes')
def flat(folder):
    folder_of(folder, 'a.png', 'b.jpg', 'n.txt')
    found, left_out = read_folder(folder, with_label=False)
    assert found == [('a.png', None), ('b.jpg', None)]
    assert left_out == {'.txt': 1}
    folder_of(folder, 'x/c.png')
    found, left_out = read_folder(folder)
    assert found == [('x/c.png', 0)]
    assert left_out == {'.txt': 1, 'outside the class folders': 2}


@pytest.mark.parametrize('name', ROWS)
def test_row(name, tmp_path):
    ROWS[name](tmp_path)
