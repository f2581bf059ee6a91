import os
import unittest

import numpy as np
from nereid.testing import Model


class NamingTest(unittest.TestCase):
    def test_the_most_probable_language_is_named(self):
        model = Model(os.path.dirname(os.path.abspath(__file__)))
        self.addCleanup(model.close)
        rows = np.zeros((2, 13), np.float32)
        rows[0, 1], rows[1, 2] = 0.75, 0.5
        answer = model(probabilities=rows)
        self.assertEqual(answer["LANGUAGE"].tolist(), [[b"C"], [b"Go"]])
        self.assertEqual(answer["CONFIDENCE"].tolist(), [[0.75], [0.5]])


if __name__ == "__main__":
    unittest.main()
