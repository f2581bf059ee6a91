import os
import unittest

import numpy as np
from nereid.testing import Model

HERE = os.path.dirname(os.path.abspath(__file__))


class PixelsTest(unittest.TestCase):
    def setUp(self):
        self.model = Model(HERE)
        self.addCleanup(self.model.close)

    def test_pictures_become_images(self):
        files = [picture(digit) for digit in (1, 7)]
        images = self.model(PNG=np.array(files, np.object_).reshape(2, 1))["image"]
        self.assertEqual(images.shape, (2, 1, 8, 8))
        self.assertEqual(images.dtype, np.float32)
        self.assertEqual((images.min(), images.max()), (0, 1))

    def test_what_is_no_picture_is_refused(self):
        for file in (b"", b"GIF89a", picture(1)[:100]):
            with self.subTest(file[:6]), self.assertRaisesRegex(Exception, "picture 1 of the request is no PNG"):
                self.model(PNG=np.array([picture(1), file], np.object_).reshape(2, 1))


def picture(digit):
    with open(os.path.join(HERE, "..", "..", "images", f"{digit}_a.png"), "rb") as file:
        return file.read()


if __name__ == "__main__":
    unittest.main()
