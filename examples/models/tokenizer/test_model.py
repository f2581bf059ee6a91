import os
import unittest

from nereid.testing import Model, ModelError

CONFIG = {"parameters": {"bytes": {"string_value": "4"}}}


class TokenizerTest(unittest.TestCase):
    def setUp(self):
        self.model = Model(os.path.dirname(os.path.abspath(__file__)), config=CONFIG)
        self.addCleanup(self.model.close)

    def test_texts_are_cut_and_padded(self):
        outputs = self.model(TEXT=[["abcdef"], ["é"]])
        self.assertEqual(outputs["text"].tolist(), [list(b"abcd"), [0xC3, 0xA9, 0, 0]])
        self.assertEqual(outputs["length"].tolist(), [[4], [2]])

    def test_requests_of_a_batch_have_lengths_of_their_own(self):
        [[short], [long]] = self.model.batch([{"TEXT": [["a"]]}, {"TEXT": [["abc"]]}])
        self.assertEqual((short["text"].shape, long["text"].shape), ((1, 1), (1, 3)))

    def test_an_empty_text_is_refused(self):
        with self.assertRaisesRegex(ModelError, "a text is empty"):
            self.model(TEXT=[["a"], [""]])


if __name__ == "__main__":
    unittest.main()
