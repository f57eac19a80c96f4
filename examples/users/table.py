"""Boosted trees on a data frame with missing values: which columns count, and can that be believed?"""

import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import veridical as vd

frame = pd.read_csv("patients.csv")
columns, state = frame.drop(columns="state"), frame["state"]
model = HistGradientBoostingClassifier(max_iter=40).fit(columns, state)
task = vd.Task(model, columns[:24], labels=state[:24], train=columns)
table = vd.evaluate(
    task, ["exact_shapley", "tree_shap", "random"], ["pixel_flipping", "faithfulness_correlation"]
)
print(table)
