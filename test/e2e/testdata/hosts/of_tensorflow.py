"""SavedModels: completed from their signatures, by a signature's name, with text and scalars."""

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from common import model, parameter, refused, request, tensors

F4 = tf.TensorSpec([None, 4], tf.float32, name="x")


class Mlp(tf.Module):
    def __init__(self):
        super().__init__()
        generator = np.random.default_rng(1)
        self.first = tf.Variable(generator.random((4, 16), np.float32))
        self.second = tf.Variable(generator.random((16, 3), np.float32))

    @tf.function(input_signature=[F4])
    def __call__(self, x):
        return {"y": tf.nn.relu(x @ self.first) @ self.second}

    @tf.function(input_signature=[F4])
    def double(self, x):
        return {"twice": x + x}


class Words(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([3], tf.string, name="words"), tf.TensorSpec([], tf.int32, name="times")])
    def __call__(self, words, times):
        return {"upper": tf.strings.upper(words), "more": times + 1}


def save(name, module, signatures, config=None):
    tf.saved_model.save(module, model(name, config) + "/model.savedmodel", signatures=signatures)


def main():
    mlp = Mlp()
    save("mlp", mlp, {"serving_default": mlp.__call__, "double": mlp.double})
    for rows in (1, 2, 3, 1, 4, 2, 1):
        given = np.random.default_rng(rows).random((rows, 4), np.float32)
        request("mlp", {"x": given}, {"y": mlp(given)["y"].numpy()})
    save("double", mlp, {"serving_default": mlp.__call__, "double": mlp.double}, parameter("TF_SIGNATURE_DEF", "double"))
    request("double", {"x": np.ones((2, 4), np.float32)}, {"twice": np.full((2, 4), 2, np.float32)})
    words = Words()
    save("words", words, words.__call__)
    request(
        "words",
        {"words": np.array([b"a", b"b", b"c"], np.object_), "times": np.array([6], np.int32)},
        {"upper": np.array([b"A", b"B", b"C"], np.object_), "more": np.array([7], np.int32)},
    )
    threads = parameter("TF_NUM_INTRA_THREADS", "1") + parameter("TF_GRAPH_TAG", "serve") + 'platform: "tensorflow_savedmodel"\n'
    save("listed", mlp, mlp.__call__, threads + tensors("input", ("x", "FP32", "[ 2, 4 ]")) + tensors("output", ("y", "FP32", "[ 2, 3 ]")))
    given = np.ones((2, 4), np.float32)
    request("listed", {"x": given}, {"y": mlp(given)["y"].numpy()})

    save("nosuch", mlp, mlp.__call__, parameter("TF_SIGNATURE_DEF", "nosuch"))
    refused("nosuch", "has no signature 'nosuch': name one of [\"serving_default\"]")
    save("other", mlp, mlp.__call__, tensors("input", ("z", "FP32", "[ 4 ]")) + tensors("output", ("y", "FP32", "[ 3 ]")) + "max_batch_size: 4")
    refused("other", "unexpected inference input 'z', allowed inputs are: x")
    with open(model("graph", tensors("input", ("x", "FP32", "[ 4 ]")) + tensors("output", ("y", "FP32", "[ 3 ]"))) + "/model.graphdef", "w"):
        pass
    refused("graph", "save the graph as a SavedModel")


main()
