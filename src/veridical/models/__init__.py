"""Everything that runs a model: the predictor, adapters for other frameworks, noisy copies."""

from veridical.core.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Context", "Memo"), "veridical.models.context"),
        **dict.fromkeys(("BoxScore", "InstanceClasses", "MaskMean"), "veridical.models.detection"),
        "Cost": "veridical.models.cost",
        "Generation": "veridical.data.generation",
        "Plan": "veridical.models.plan",
        "Server": "veridical.models.servers",
        **dict.fromkeys(("Atoms", "Blocks", "Channels", "Heads", "Mlps"), "veridical.models.inner_units"),
        **dict.fromkeys(("Counterfactual", "MeanOver", "Zeroed"), "veridical.models.inner_units"),
    },
)
