from collections.abc import Iterable


def check_names(wanted: Iterable[str], found: Iterable[str]) -> None:
    """Nothing may be missing from the checkpoint, and nothing left over."""
    missing, extra = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    if missing or extra:
        raise KeyError(f"checkpoint: missing {missing or 'nothing'}, not known {extra or 'nothing'}")
