"""What decoding takes at its height, in bytes a pixel, for each format: `python tests/attack/memory_of_images.py`.

`tamis.pool.images` allows formats whose decoders take more than 10 bytes a pixel fewer pixels; its numbers come from
here.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from child import measured

SIDE = 4000

FORMATS: dict[str, tuple[str, str, dict[str, object]]] = {
    "jpeg": ("RGB", "JPEG", {}),
    "jpeg, progressive": ("RGB", "JPEG", {"progressive": True}),
    "jpeg, progressive 4:4:4": ("RGB", "JPEG", {"progressive": True, "subsampling": 0}),
    "jpeg, cmyk progressive": ("CMYK", "JPEG", {"progressive": True}),
    "jpeg, grey": ("L", "JPEG", {}),
    "jpeg, turned": ("RGB", "JPEG", {"turned": True}),
    "png": ("RGB", "PNG", {"compress_level": 1}),
    "png, alpha": ("RGBA", "PNG", {"compress_level": 1}),
    "png, 16 bits": ("I;16", "PNG", {"compress_level": 1}),
    "png, one bit": ("1", "PNG", {"compress_level": 1}),
    "gif": ("P", "GIF", {}),
    "bmp": ("RGB", "BMP", {}),
    "tiff": ("RGB", "TIFF", {}),
    "tiff, lzw": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    "tiff, floats": ("F", "TIFF", {}),
    "webp": ("RGB", "WEBP", {"method": 0}),
    "webp, alpha": ("RGBA", "WEBP", {"method": 0}),
    "webp, lossless": ("RGBA", "WEBP", {"method": 0, "lossless": True, "quality": 0}),
    "jpeg 2000": ("RGB", "JPEG2000", {}),
    "jpeg 2000, alpha": ("RGBA", "JPEG2000", {}),
    "avif": ("RGB", "AVIF", {"speed": 10}),
    "avif, 4:4:4": ("RGB", "AVIF", {"speed": 10, "subsampling": "4:4:4"}),
    "avif, alpha": ("RGBA", "AVIF", {"speed": 10}),
    "ppm": ("RGB", "PPM", {}),
    "tga": ("RGB", "TGA", {"compression": "tga_rle"}),
}


def drawn(mode: str) -> Image.Image:
    """Returns an image of 16 million pixels that is neither flat nor noise."""
    coarse = np.random.default_rng(0).integers(0, 256, (SIDE // 50, SIDE // 50, 4), dtype=np.uint8)
    image = Image.fromarray(coarse, "RGBA").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return image.convert("L").convert(mode) if mode in ("F", "I;16", "1", "L") else image.convert(mode)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image"
        for name, (mode, format, settings) in FORMATS.items():
            if format == "AVIF" and "AVIF" not in Image.SAVE:
                Image.init()
                if "AVIF" not in Image.SAVE:
                    continue
            settings = dict(settings)
            if settings.pop("turned", False):
                exif = Image.Exif()
                exif[0x0112] = 6
                settings["exif"] = exif.tobytes()
            out = io.BytesIO()
            drawn(mode).save(out, format, **settings)  # type: ignore[arg-type]
            path.write_bytes(out.getvalue())
            small = measured("decode", path, max_pixels=1)
            whole = measured("decode", path, max_pixels=10**9)
            per_pixel = (whole.peak - small.peak) / SIDE**2
            print(f"{name:28} {per_pixel:5.1f} bytes a pixel   {whole.seconds:5.2f} s   {whole.outcome}")  # noqa: T201


if __name__ == "__main__":
    main()
