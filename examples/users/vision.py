"""A network and an explainer of one's own, beside captum's."""

import torch
from captum.attr import IntegratedGradients

import veridical as vd

digits = vd.tasks.load("digits")[:16]
net, images = digits.model, digits.inputs  # stand for your own


def mine(model, inputs, targets):
    inputs.requires_grad_()
    score = model(inputs).gather(1, targets[:, None]).sum()
    return inputs * torch.autograd.grad(score, inputs)[0]


methods = {"mine": mine, "captum": IntegratedGradients(net), "random": "random"}
table = vd.evaluate(vd.Task(net, images), methods, ["pixel_flipping", "insertion"])
print(table)
