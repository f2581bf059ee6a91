"""The languages in which texts are written.

A text whose first line names its language is answered at once. The others pass through `tokenizer` to a classifier, one call for each of
them: the calls run at the same time, and the classifier puts those of equal length into one batch.
"""

import asyncio
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils

FIRST_LINES = {b"#!/bin/sh": "Shell", b"#!/bin/bash": "Shell", b"#!/usr/bin/env python3": "Python", b"<!doctype html>": "HTML"}


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.classifiers = parameters["classifiers"]["string_value"].split()
        with open(os.path.join(pb_utils.get_model_dir(), "labels.txt")) as file:
            self.labels = file.read().split()

    async def execute(self, requests):
        return await asyncio.gather(*(self.route(request) for request in requests))

    async def route(self, request):
        try:
            classifier = self.choose(request)
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().flatten()
            answers = [self.first_line(text) for text in texts]
            asked = [position for position, answer in enumerate(answers) if answer is None]
            if asked:
                rows = await self.tokenize(request, texts[asked])
                found = await asyncio.gather(*(self.classify(request, classifier, row) for row in rows))
                for position, answer in zip(asked, found):
                    answers[position] = answer
        except CallError as error:
            return pb_utils.InferenceResponse(error=error.args[0])
        columns = zip(*answers)
        language, confidence, by = (np.array(column).reshape(-1, 1) for column in columns)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LANGUAGE", language.astype(np.object_)),
                pb_utils.Tensor("CONFIDENCE", confidence.astype(np.float32)),
                pb_utils.Tensor("MODEL", by.astype(np.object_)),
            ]
        )

    def choose(self, request):
        """Return the classifier that the request's parameter names, or the first one."""
        name = json.loads(request.parameters()).get("classifier", self.classifiers[0])
        if name not in self.classifiers:
            text = "there is no classifier %s: choose from %s" % (name, self.classifiers)
            raise CallError(pb_utils.TritonError(text, pb_utils.TritonError.INVALID_ARG))
        return name

    def first_line(self, text):
        language = FIRST_LINES.get(text.split(b"\n", 1)[0].strip().lower())
        return language and (language, 1.0, "router")

    async def tokenize(self, request, texts):
        """Return the bytes of each text."""
        outputs = await call(request, "tokenizer", ["text", "length"], pb_utils.Tensor("TEXT", texts.reshape(-1, 1)))
        return [row[:length] for row, length in zip(outputs["text"], outputs["length"].flat)]

    async def classify(self, request, classifier, row):
        outputs = await call(request, classifier, ["probabilities"], pb_utils.Tensor("text", row.reshape(1, -1)))
        best = outputs["probabilities"][0].argmax()
        return self.labels[best], outputs["probabilities"][0][best], classifier


class CallError(Exception):
    """The error with which the request is answered."""


async def call(request, model, outputs, tensor):
    """Ask another model, as a part of the request's trace, and return its outputs by name."""
    made = pb_utils.InferenceRequest(
        request_id=request.request_id(), model_name=model, requested_output_names=outputs, inputs=[tensor], trace=request.trace()
    )
    response = await made.async_exec()
    if response.has_error():
        raise CallError(response.error())
    return {one.name(): one.as_numpy() for one in response.output_tensors()}
