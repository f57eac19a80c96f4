"""What flows through the package: tasks, explanations, scores, and the features they speak of."""
