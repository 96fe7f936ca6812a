"""Which words may label a part: a path of parameters, an attribute of a module and a variable of its forward."""

from __future__ import annotations

import keyword
import re

PATTERN = r"^[a-z][a-z0-9_]{0,63}$"
PATTERN_IN_WORDS = "a letter a-z, then letters, digits and _, at most 64 in all"

# Attributes of torch.nn.Module: a part of that name would take their place.
_MODULE = """
    add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval extra_repr
    float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia
    named_buffers named_children named_modules named_parameters parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule
    share_memory state_dict to to_empty train training type xpu zero_grad
"""
# What emitted code calls its own values, and what stands at the head of its file.
_EMITTED = """
    attention_mask batch bias input_ids keys_at labels layer layers loss nn past past_key_values position_ids present
    queries_at self tokens torch use_cache weight
"""
# The names of values in a layer.
_MADE = re.compile(r"(x|mask|rotary|cos|sin|key|value|past_key|past_value)(_\d+)*|after_\w+|scaled_\w+|\w+_plus_\w+")


def label_fault(label: str) -> str:
    """Why this word cannot be a label, or nothing."""
    if not re.fullmatch(PATTERN, label):
        return f"a label is {PATTERN_IN_WORDS}"
    if label == "none":
        return "none turns a thing off"
    if label in _MODULE.split():
        return "it is an attribute of every PyTorch module"
    if keyword.iskeyword(label) or keyword.issoftkeyword(label):
        return "it is a word of Python"
    if label in _EMITTED.split() or _MADE.fullmatch(label):
        return "emitted code calls something else so"
    return ""
