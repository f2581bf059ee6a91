import os
import unittest

import numpy as np
from nereid.testing import Model, ModelError, Request

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.dirname(HERE)
CONFIG = {"parameters": {"classifiers": {"string_value": "language guesses"}}}

with open(os.path.join(MODELS, "language", "language_labels.txt")) as file:
    LABELS = file.read().split()


def knows(language, probability):
    """Return a classifier that finds one language in all texts."""
    probabilities = np.full((1, len(LABELS)), (1 - probability) / (len(LABELS) - 1), np.float32)
    probabilities[0, LABELS.index(language)] = probability
    return lambda text: {"probabilities": probabilities}


class RouterTest(unittest.TestCase):
    def setUp(self):
        self.lengths = []
        tokenizer = Model(os.path.join(MODELS, "tokenizer"), config={"parameters": {"bytes": {"string_value": "1024"}}})
        self.addCleanup(tokenizer.close)
        models = {"tokenizer": tokenizer, "language": self.language, "guesses": knows("YAML", 0.5)}
        self.model = Model(HERE, config=CONFIG, models=models)
        self.addCleanup(self.model.close)

    def language(self, text):
        self.lengths.append(text.shape)
        return knows("Go", 0.75)(text)

    def test_texts_are_classified_without_padding(self):
        outputs = self.model(TEXT=[["package a"], ["package other"]])
        self.assertEqual(outputs["LANGUAGE"].tolist(), [["Go"], ["Go"]])
        self.assertEqual(outputs["CONFIDENCE"].tolist(), [[0.75], [0.75]])
        self.assertEqual(self.lengths, [(1, 9), (1, 13)])

    def test_a_first_line_that_says_it_asks_no_model(self):
        outputs = self.model(TEXT=[["#!/bin/sh\nls"], ["package a"], ["<!DOCTYPE html>\n"]])
        self.assertEqual(outputs["LANGUAGE"].tolist(), [["Shell"], ["Go"], ["HTML"]])
        self.assertEqual(outputs["MODEL"].tolist(), [["router"], ["language"], ["router"]])
        self.assertEqual(len(self.lengths), 1)

    def test_a_request_may_choose_the_classifier(self):
        [[one], [other]] = self.model.batch([Request({"TEXT": [["a: b"]]}, {"classifier": "guesses"}), {"TEXT": [["a: b"]]}])
        self.assertEqual((one["LANGUAGE"].tolist(), other["LANGUAGE"].tolist()), ([["YAML"]], [["Go"]]))
        with self.assertRaisesRegex(ModelError, "there is no classifier digits"):
            self.model.batch([Request({"TEXT": [["a"]]}, {"classifier": "digits"})])

    def test_errors_of_calls_are_those_of_the_request(self):
        with self.assertRaisesRegex(ModelError, "a text is empty"):
            self.model(TEXT=[[""]])

    def test_labels_are_those_of_the_classifier(self):
        with open(os.path.join(HERE, "1", "labels.txt")) as file:
            self.assertEqual(file.read().split(), LABELS)


if __name__ == "__main__":
    unittest.main()
