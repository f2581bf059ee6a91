"""Pictures in files, made into the images that `digits` takes."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, UnidentifiedImageError

SIZE = (8, 8)
MOST = 4096 * 4096  # pixels that a picture may have: a small file can claim to be a large one


class TritonPythonModel:
    def execute(self, requests):
        return [self.convert(request) for request in requests]

    def convert(self, request):
        files = pb_utils.get_input_tensor_by_name(request, "PNG").as_numpy().flatten()
        images = np.empty((len(files), 1, *SIZE), np.float32)
        for i, file in enumerate(files):
            try:
                images[i, 0] = read(file)
            except (OSError, SyntaxError, ValueError) as error:
                cause = "" if isinstance(error, UnidentifiedImageError) else f": {error}"
                text = f"picture {i} of the request is no PNG that can be read{cause}"
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return pb_utils.InferenceResponse([pb_utils.Tensor("image", images)])


def read(file):
    """Returns the picture with 8x8 pixels from 0 (paper) to 1 (ink)."""
    with Image.open(io.BytesIO(file), formats=["PNG"]) as picture:
        if picture.width * picture.height > MOST:
            raise ValueError(f"it has {picture.width} x {picture.height} pixels, {MOST} in all are the most")
        grey = picture.convert("L").resize(SIZE, Image.Resampling.BOX)
    return np.asarray(grey, np.float32) / np.float32(255)
