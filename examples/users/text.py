"""A Hugging Face text classifier in a folder, and sentences in a file."""

import veridical as vd
from veridical.data import load_task

task = load_task("my-classifier", "reviews.jsonl", labels="label", samples=16)
table = vd.evaluate(task, ["occlusion", "integrated_gradients", "random"], ["comprehensiveness"])
print(table)
maps = vd.explain("occlusion", task)
words = [maps.top(sample, 1)[0] for sample in range(len(task))]  # the word that counts most
