"""`python -m scripts.docs_site pixel_flipping`: print the page of a metric or explainer."""

import sys

from scripts.docs_site.cards import explainer_page, metric_page
from veridical.metrics import registry as metrics

for name in sys.argv[1:]:
    print((metric_page if name in metrics else explainer_page)(name)[0])
