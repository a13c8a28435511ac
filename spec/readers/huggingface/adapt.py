"""What single model types write in keys of their own, turned into the keys and facts that every decoder is read by.

Source: transformers 5 ``models/<type>/configuration_<type>.py`` (what a class makes of keys, those of older files too) and ``modeling_<type>.py``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from spec.readers.huggingface.parts import PREDICTING, read_layer_numbers, read_layers
from spec.readers.huggingface.type_facts import TypeFacts
from spec.section import Section

FULL, WINDOW = "full_attention", "sliding_attention"


def chameleon(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns norms behind both halves where ``swin_norm`` says so."""
    return replace(facts, norm_place="after" if top.flag("swin_norm", False) else "before")


def kyutai(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns a table of the text's tokens, every codebook's and one more; gate and up are halves of ``ffn_dim``."""
    top.only("tie_word_embeddings", (False,), "a head tied to part of a table is not priced")
    rows = top.integer("num_codebooks") * top.integer("codebook_vocab_size") + 1
    return replace(facts, values={"extra_embedding_rows": rows, "intermediate_size": top.integer("ffn_dim") // 2})


def molmo2(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns norms of queries and keys as ``qk_norm_type`` has them, and behind both halves where ``norm_after`` says so."""
    top.only("tie_word_embeddings", (False,), "a head tied to part of a table is not priced")
    kind = top.choice("qk_norm_type", ("qwen3", "olmo"), "qwen3")
    after = "after" if top.flag("norm_after", False) else "before"
    return replace(facts, qk_norm="head" if kind == "qwen3" else "all_heads", norm_place=after)


def dbrx(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the keys of attention and experts, which stand in sections of their own."""
    attention, experts = top.section("attn_config"), top.section("ffn_config")
    values: dict[str, object] = {
        "num_key_value_heads": attention.integer("kv_n_heads", 1),
        "rope_theta": attention.number("rope_theta", 10_000.0),
        "moe_intermediate_size": experts.integer("ffn_hidden_size", 3584),
        "num_experts": experts.integer("moe_num_experts", 4),
        "num_experts_per_tok": experts.integer("moe_top_k", 1),
    }
    return replace(facts, values=values)


def dots3(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the latents of layers with windows, by ``per_layer_config`` or keys of their own, and no indexer there; the width of
    all shared experts."""
    none = {"index_topk": 0, "index_n_heads": 0, "index_head_dim": 0}
    window = {key: top.integer(f"swa_{key}", default) for key, default in DOTS3_WINDOW.items()}
    window["qk_rope_head_dim"] = top.integer(
        "swa_qk_rope_head_dim", top.integer("swa_head_dim", 256) - window["qk_nope_head_dim"]
    )
    changes: dict[str | int, Mapping[str, object]] = {WINDOW: {**window, **none}}
    if top.has("per_layer_config"):
        changes |= {index: {**keys, **none} for index, keys in _layer_by_layer(top).items()}
    if not top.flag("use_dsa", True) or (FULL in top.texts("layer_types") and not top.has("use_dsa")):
        changes[FULL] = none
    shared = top.integer("moe_shared_expert_intermediate_size", top.integer("shared_experts_intermediate_size"))
    values: dict[str, object] = {"shared_expert_intermediate_size": shared * top.integer("n_shared_experts")}
    values["sliding_window"] = top.integer("sliding_window", top.integer("sliding_window_size", 512))
    return replace(facts, values=values, changes=changes)


DOTS3_WINDOW = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}


def ernie_vl(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the text's experts where a list has those of images behind them."""
    keys = ("moe_intermediate_size", "num_experts", "first_k_dense_replace", "moe_layer_end_index")
    listed = {key: top.values[key] for key in keys if isinstance(top.values.get(key), list)}
    return replace(facts, values={key: value[0] for key, value in listed.items() if isinstance(value, list) and value})


def exaone4(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns windows by a text such as LLLG or a number; none where ``sliding_window`` is null."""
    written = top.values.get("sliding_window_pattern")
    if not top.has("sliding_window"):
        return replace(facts, pattern=[FULL], period="")
    if not isinstance(written, str):
        return facts
    if set(written) - {"L", "G"} or written.count("G") != 1 or not written.endswith("G"):
        top.fail("sliding_window_pattern", "a whole number, or a text such as LLLG")
    return replace(facts, values={"sliding_window_pattern": len(written)})


def falcon(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns heads of keys and norms as Falcon's two architectures have them."""
    heads, new = top.integer("num_attention_heads"), top.flag("new_decoder_architecture", False)
    parallel = top.flag("parallel_attn") or new
    norms = top.integer("num_ln_in_parallel_attn", 2 if new else 1)
    kv_heads = top.integer("num_kv_heads", heads) if new else 1 if top.flag("multi_query") else heads
    if top.integer("hidden_size") % heads or heads % kv_heads:
        top.fail(
            "num_attention_heads",
            f"a divisor of hidden_size = {top.integer('hidden_size')}, and a multiple of num_kv_heads",
        )
    return replace(
        facts,
        values={"num_key_value_heads": kv_heads},
        norm_place="shared" if parallel and norms == 1 else "before",
        parallel_residual=parallel,
    )


def gpt_bigcode(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns one head of keys and values where ``multi_query`` says so."""
    return replace(facts, values={"num_key_value_heads": 1} if top.flag("multi_query") else {})


def gemma4(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the heads of layers of full attention, whose values may be their keys: by ``per_layer_config``, or by keys for all
    of them."""
    top.only("hidden_size_per_layer_input", (0,), "an embedding of every layer's own is not priced")
    top.only("num_kv_shared_layers", (0,), "keys and values of another layer are not priced")
    top.only("enable_moe_block", (False,), "experts beside an MLP with norms of their own are not priced")
    same = top.flag("attention_k_eq_v", False)
    heads = top.integer("num_key_value_heads")
    whole: dict[str, object] = {"keys_as_values": same, "head_dim": top.integer("global_head_dim", 512)}
    whole["num_key_value_heads"] = top.integer("num_global_key_value_heads", heads) if same else heads
    changes: dict[str | int, Mapping[str, object]] = {FULL: whole}
    if top.has("per_layer_config"):
        changes = {FULL: {"keys_as_values": same}, **_layer_by_layer(top)}
    return replace(facts, changes=changes)


def _layer_by_layer(top: Section) -> dict[str | int, Mapping[str, object]]:
    """Returns the keys that single layers have of their own."""
    listed = top.section("per_layer_config")
    if not all(index.isdigit() for index in listed.values):
        top.fail("per_layer_config", "a table of keys by the number of a layer")
    return {int(index): listed.section(index).values for index in listed.values}


def gpt_neo(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers by ``attention_types``, pairs of kinds and how often they repeat, where they are not listed."""
    if top.has("layer_types"):
        return facts
    listed = top.values.get("attention_types") or [[["global", "local"], 12]]
    kinds = [kind for part, times in listed for _ in range(times) for kind in part] if isinstance(listed, list) else []
    return replace(facts, values={"layer_types": kinds})


def glm_moe_dsa(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers that take the selection of the one before: by ``indexer_types``, a pattern of F and S, or how often
    and from where on others make one."""
    layers = read_layers(top)
    freq, offset = top.integer("index_topk_freq", 1), top.integer("index_skip_topk_offset", 2, minimum=0)
    words = {"full": False, "F": False, "shared": True, "S": True}
    listed = top.values.get("indexer_types") or top.values.get("index_topk_pattern")
    if listed is None:
        shared = [max(index - offset + 1, 0) % freq > 0 for index in range(layers)]
    elif (
        isinstance(listed, (list, str))
        and len(listed) == layers
        and set(listed) <= set(words)
        and words[listed[0]] is False
    ):
        shared = [words[word] for word in listed]
    else:
        top.fail("indexer_types", f"full or shared for each of {layers} layers, full for the first")
    borrowed: dict[str, object] = {"index_n_heads": 0, "index_head_dim": 0}
    return replace(facts, changes={index: borrowed for index, borrows in enumerate(shared) if borrows})


def hy_v4(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers that take the selection of the one before: all but the first and every fourth from the second on, where a file
    lists none."""
    kinds = ["shared" if index and (index - 1) % 4 else "full" for index in range(read_layers(top))]
    return glm_moe_dsa(
        replace(top, values={**top.values, "indexer_types": top.values.get("indexer_types") or kinds}), facts
    )


def gpt_neox_japanese(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns a bias of attention's output in the last layer alone."""
    return replace(facts, changes={read_layers(top) - 1: {"dense_bias": True}})


def hunyuan_moe(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns one number where a list has the same for every layer."""
    values: dict[str, object] = {}
    for key in ("num_experts_per_tok", "num_experts"):
        listed = top.values.get(key)
        if isinstance(listed, list):
            if len(set(listed)) != 1:
                top.fail(key, "a whole number, or a list of the same for every layer")
            values[key] = listed[0]
    return replace(facts, values=values)


def hyperclovax(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns norms around both halves where ``use_post_norm`` says so."""
    return replace(facts, norm_place="around" if top.flag("use_post_norm", False) else "before")


def kimi_linear(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers by ``linear_attn_config``, which counts them from 1, or attention in every fourth but the first; decays and
    gates through as many channels as a head has."""
    older, layers = top.section("linear_attn_config"), read_layers(top)
    values: dict[str, object] = {
        "linear_head_dim": older.integer("head_dim", top.integer("linear_head_dim")),
        "linear_num_heads": older.integer("num_heads", top.integer("linear_num_heads")),
        "linear_conv_kernel_dim": older.integer("short_conv_kernel_size", top.integer("linear_conv_kernel_dim")),
    }
    values["linear_gate_rank"] = values["linear_head_dim"]
    if not top.has("layer_types"):
        whole = [index - 1 for index in read_layer_numbers(older, "full_attn_layers")] or range(4, layers, 4)
        values["layer_types"] = [FULL if index in whole else "linear_attention" for index in range(layers)]
    return replace(facts, values=values)


def bailing_hybrid(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the heads of the delta rule, which are attention's."""
    values: dict[str, object] = {
        "linear_head_dim": top.integer("linear_head_dim", top.integer("head_dim")),
        "linear_num_heads": top.integer("num_attention_heads"),
        "linear_conv_kernel_dim": top.integer("short_conv_kernel_size"),
    }
    return replace(facts, values=values)


def lfm2(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers by ``full_attn_idxs``, which are all where a file lists none, and the width that the MLP makes of its key."""
    layers, width = read_layers(top), top.integer("intermediate_size")
    values: dict[str, object] = {}
    if top.has("full_attn_idxs") and not top.has("layer_types"):
        whole = read_layer_numbers(top, "full_attn_idxs")
        values["layer_types"] = [FULL if index in whole else "linear_attention" for index in range(layers)]
    if top.flag("block_auto_adjust_ff_dim", False):
        multiple = top.integer("block_multiple_of")
        width = int(top.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
        values["intermediate_size"] = (width + multiple - 1) // multiple * multiple
    return replace(facts, values=values)


def lfm2_moe(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns scores that a bias of each expert corrects where ``use_expert_bias`` says so."""
    return replace(facts, router_bias=top.flag("use_expert_bias", True))


def lfm3(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the norms behind both halves and the gates of heads that a file may leave out; windows in every fourth layer but the
    first, full attention in the middle between two of those, convolutions in the others."""
    kinds = [
        "linear_attention" if index % 2 or not index else (WINDOW, FULL)[index % 4 // 2]
        for index in range(read_layers(top))
    ]
    return replace(
        facts,
        pattern=kinds,
        norm_place="around" if top.flag("use_sandwich_norm") else "before",
        output_gate="head" if top.flag("use_attention_gate") else "",
    )


def laguna(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns heads layer by layer, and what a gate covers."""
    gating = top.values.get("gating", True)
    gates = {True: "head", "per-head": "head", "per-element": "channel", False: ""}
    if not isinstance(gating, (str, bool)) or gating not in gates:
        top.fail("gating", "True, False, per-head or per-element")
    heads = top.values.get("num_attention_heads_per_layer") or [top.integer("num_attention_heads")] * read_layers(top)
    if not isinstance(heads, list) or len(heads) != read_layers(top):
        top.fail("num_attention_heads_per_layer", "a list of heads, one for each layer")
    changes: Mapping[str | int, Mapping[str, object]] = {
        index: {"num_attention_heads": count} for index, count in enumerate(heads)
    }
    return replace(facts, output_gate=gates[gating], changes=changes)


def mimo(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers by zeros and ones where a file has those, and twice the heads of keys in those with windows."""
    layers, values = read_layers(top), dict[str, object]()
    kinds = top.values.get("layer_types") or [index > 0 and (index + 1) % 6 > 0 for index in range(layers)]
    routed = top.values.get("moe_layer_freq")
    if isinstance(kinds, list) and not any(isinstance(kind, str) for kind in kinds):
        values["layer_types"] = [WINDOW if kind else FULL for kind in kinds]
    if isinstance(routed, list):
        values |= {"mlp_layer_types": ["sparse" if one else "dense" for one in routed], "moe_layer_freq": None}
    heads = top.integer("swa_num_key_value_heads", 2 * top.integer("num_key_value_heads"))
    return replace(facts, values=values, sinks=WINDOW, changes={WINDOW: {"num_key_value_heads": heads}})


def mistral_large4(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers of ``no_rope_layers`` (0; every ``no_rope_layer_interval``-th where a file lists none), whose heads are as wide but
    rotate nothing, beside those that take the selection of the one before; latents of another layer are refused."""
    layers, rope = read_layers(top), top.integer("qk_rope_head_dim")
    listed = read_layer_numbers(top, "no_rope_layers")
    rotates = listed or [(index + 1) % top.integer("no_rope_layer_interval", 4) for index in range(layers)]
    if len(rotates) != layers:
        top.fail("no_rope_layers", f"a list of {layers} zeros and ones")
    if read_layer_numbers(top, "kv_source_layers") not in ([], list(range(layers))):
        top.fail("kv_source_layers", "each layer's own number: keys of another layer are not priced")
    still = {"qk_rope_head_dim": 0, "qk_nope_head_dim": top.integer("qk_nope_head_dim") + rope}
    facts = glm_moe_dsa(top, facts)
    changes: dict[str | int, Mapping[str, object]] = dict(facts.changes)
    for index, one in enumerate(rotates):
        if not one:
            changes[index] = {**changes.get(index, {}), **still}
    return replace(facts, changes=changes, values={"rope_scales": rope // 2, "q_lora_rank": None})


def minimax_m2(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns blocks that predict further tokens: ``num_mtp_modules`` of one layer where ``use_mtp`` says so."""
    top.only("mtp_transformer_layers", (1,), "modules of several layers that predict one token are not priced")
    modules = top.integer("num_mtp_modules", 0, minimum=0) if top.flag("use_mtp", False) else 0
    return replace(facts, values={PREDICTING: modules})


def minicpm3(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns values as wide as the hidden size over the heads, unless a config says otherwise."""
    width = top.integer("v_head_dim", top.integer("hidden_size") // top.integer("num_attention_heads"))
    return replace(facts, values={"v_head_dim": width})


def minimax_m3(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers that route by zeros and ones; the block-sparse attention of some files is refused."""
    top.only("sparse_attention_config", (), "block-sparse attention is not priced")
    routed, values = top.values.get("moe_layer_freq"), dict[str, object](moe_layer_freq=None)
    if isinstance(routed, list):
        values["mlp_layer_types"] = ["sparse" if one else "dense" for one in routed]
    return replace(facts, values=values)


def muse(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns full attention in every fourth layer counted from the last."""
    layers = read_layers(top)
    return replace(facts, pattern=[WINDOW if (layers - 1 - index) % 4 else FULL for index in range(layers)])


def olmo_hybrid(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns heads of the gated delta rule: as many as attention has, keys of three quarters of their share of the
    hidden size, values twice as wide."""
    heads = top.integer("num_attention_heads")
    keys = top.integer(
        "linear_key_head_dim", 3 * top.integer("hidden_size") // (4 * top.integer("linear_num_key_heads", heads))
    )
    values = {
        "linear_num_key_heads": top.integer("linear_num_key_heads", heads),
        "linear_num_value_heads": top.integer("linear_num_value_heads", heads),
        "linear_key_head_dim": keys,
        "linear_value_head_dim": top.integer("linear_value_head_dim", 2 * keys),
    }
    return replace(facts, values=values)


def opt(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the facts; embeddings of another width than the layers' are refused."""
    top.only(
        "word_embed_proj_dim", (top.integer("hidden_size"),), "embeddings of another width (OPT-350m) are not priced"
    )
    return facts


def recurrent_gemma(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns layers by ``block_types``, repeated; gate and up are halves of the MLP's width."""
    kinds = [WINDOW if kind == "attention" else "linear_attention" for kind in top.texts("block_types")]
    values: dict[str, object] = {"intermediate_size": top.integer("intermediate_size") // 2}
    return replace(facts, pattern=kinds or facts.pattern, values=values)


def stablelm(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns one norm for both halves where they stand side by side."""
    parallel = top.flag("use_parallel_residual", False)
    return replace(facts, parallel_residual=parallel, norm_place="shared" if parallel else "before")


def step3p5(top: Section, facts: TypeFacts) -> TypeFacts:
    """Returns the heads of layers with windows (``num_sliding_attention_heads``; ``attention_other_setting`` in older files)."""
    older = top.section("attention_other_setting")
    heads = top.integer(
        "num_sliding_attention_heads", older.integer("num_attention_heads", top.integer("num_attention_heads"))
    )
    return replace(facts, changes={WINDOW: {"num_attention_heads": heads}})


Adapt = Callable[[Section, TypeFacts], TypeFacts]
ADAPT: dict[str, Adapt] = {
    each.__name__: each
    for each in (
        bailing_hybrid,
        chameleon,
        dbrx,
        dots3,
        ernie_vl,
        exaone4,
        falcon,
        gemma4,
        gpt_bigcode,
        gpt_neo,
        glm_moe_dsa,
        gpt_neox_japanese,
        hunyuan_moe,
        hy_v4,
        hyperclovax,
        kimi_linear,
        kyutai,
        laguna,
        lfm2,
        lfm2_moe,
        lfm3,
        mimo,
        minicpm3,
        mistral_large4,
        minimax_m2,
        minimax_m3,
        molmo2,
        muse,
        olmo_hybrid,
        opt,
        recurrent_gemma,
        stablelm,
        step3p5,
    )
}
