import os
import unittest

from nereid.testing import Model, Request


class WordsTest(unittest.TestCase):
    def setUp(self):
        self.model = Model(os.path.dirname(os.path.abspath(__file__)))
        self.addCleanup(self.model.close)

    def test_each_word_is_a_response(self):
        words = [one["WORD"].tolist() for one in self.model.responses(TEXT=["one two  three\n"])]
        self.assertEqual(words, [[b"one"], [b"two"], [b"three"]])
        self.assertEqual(self.model.responses(TEXT=[" "]), [])

    def test_nothing_is_sent_to_a_client_that_is_gone(self):
        [responses] = self.model.batch([Request({"TEXT": ["one two three"]}, {"pause_ms": 1}, canceled_after=2)])
        self.assertEqual(len(responses), 2)


if __name__ == "__main__":
    unittest.main()
