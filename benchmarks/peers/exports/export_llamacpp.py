"""llama.cpp's file of a checkpoint, with no tokenizer: export_llamacpp.py CHECKPOINT OUT [TYPE]

The weights are in float32, or in a type that llama.cpp quantises them to, such as Q4_K_M.

llama.cpp pairs neighbours in rope where the checkpoint pairs halves: rows of q and k go another way round.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
WHOLE = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def renamed(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def neighbours(matrix: np.ndarray, heads: int) -> np.ndarray:
    """(heads x (2, D/2), W) to (heads x (D/2, 2), W)"""
    return matrix.reshape(heads, 2, -1, matrix.shape[1]).swapaxes(1, 2).reshape(matrix.shape)


def divisors(config: dict) -> np.ndarray:
    """What llama3's scaling divides rope's frequencies by: 1 where they are fast, `factor` where slow, else between."""
    scaling, size = config["rope_scaling"], config["head_dim"]
    factor, low, high = (scaling[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = scaling["original_max_position_embeddings"] / (
        2 * math.pi * config["rope_theta"] ** (np.arange(0, size, 2) / size)
    )
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out / "model.gguf", "llama", use_temp_file=False)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")
    freqs = [] if config["rope_scaling"] is None else [divisors(config)]
    for array in freqs:
        writer.add_tensor_info("rope_freqs.weight", array.shape, array.dtype, array.nbytes)
    with safe_open(source / "model.safetensors", "numpy") as tensors:
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}
        for name, shape in shapes.items():
            writer.add_tensor_info(renamed(name), shape, np.dtype(np.float32), 4 * math.prod(shape))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for array in freqs:
            writer.write_tensor_data(array)
        for name in shapes:
            array = tensors.get_tensor(name)
            if ".q_proj." in name or ".k_proj." in name:
                heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
                array = np.ascontiguousarray(neighbours(array, heads))
            writer.write_tensor_data(array)
    writer.close()
    if len(sys.argv) > 3:
        quantise(out / "model.gguf", sys.argv[3])


def quantise(file: Path, kind: str) -> None:
    import llama_cpp

    whole, params = file.with_suffix(".f32"), llama_cpp.llama_model_quantize_default_params()
    file.rename(whole)
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    done = llama_cpp.llama_model_quantize(str(whole).encode(), str(file).encode(), params)
    whole.unlink()
    if done:
        raise SystemExit(f"llama.cpp did not quantise to {kind}: {done}")


main()
