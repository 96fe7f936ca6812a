"""The models of other libraries that a twin must compute the same logits as."""
