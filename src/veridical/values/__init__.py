"""What flows: tasks, explanations, scores, evaluations."""

from veridical.core.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Curve": "veridical.values.scores",
        "Direction": "veridical.values.scores",
        "Evaluation": "veridical.values.evaluation",
        "Explanation": "veridical.values.explanation",
        "Scores": "veridical.values.scores",
        "Space": "veridical.core.space",
        "Task": "veridical.values.task",
    },
)
