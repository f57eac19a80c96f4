"""What everything rests on: keyed draws, settings, the registry, progress, files."""

from veridical.core.key import Key as Key
