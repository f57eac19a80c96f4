"""Trains the example's model: logistic regression on eight columns of the breast cancer table.

python examples/ci/model.py --seed 1 --out new.joblib      writes the model, and rows.csv beside this file
"""

import argparse
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", type=Path, required=True)
given = parser.parse_args()

table = load_breast_cancer(as_frame=True)
columns = table.data.columns[:8]
rows, labels = table.data[columns], table.target
chosen = np.random.default_rng(given.seed).choice(400, 380, replace=False)
model = make_pipeline(StandardScaler(), LogisticRegression(C=0.5)).fit(rows.iloc[chosen], labels.iloc[chosen])
joblib.dump(model, given.out)
pd.concat([rows.iloc[400:].round(4), labels.iloc[400:].rename("label")], axis=1).to_csv(
    Path(__file__).with_name("rows.csv"), index=False
)
