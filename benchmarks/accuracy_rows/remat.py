"""Recomputation in MaxText's words: its remat policies, and those of its own configurations."""

import re

from benchmarks.accuracy_rows.row import Row

# MaxText e591f30 layers/decoders.py, get_remat_policy, as recomputation.keeps says it; what mlpwo makes no
# backward reads.
POLICIES: dict[str, str] = {
    "full": "",
    "save_qkv_proj": "qkv",
    "save_out_proj": "out",
    "save_dot_except_mlp": "qkv+out",
    "save_dot_except_mlpwi": "qkv+out",
    "save_dot_with_context_except_mlp": "qkv+context+out",
    "minimal": "qkv+out+up",
    "minimal_with_context": "qkv+context+out+up",
    "minimal_flash": "qkv+context+out+up",
}
STATED = re.compile(
    rf"remat(?:_| )?(?:policy)?[=: ]\s?({'|'.join(sorted(POLICIES, key=len, reverse=True))})\b"
)
# configs/gpu/models/*.yml, by starts of models' names; base.yml has "full". That of Mixtral is left out: what
# it would keep of the file's 12 sequences is more than an H100 has.
OF_MODELS: tuple[tuple[str, str], ...] = (
    ("llama2-7b", "minimal_with_context"),
    ("mixtral", ""),
    ("", "full"),
)


def policy(row: Row) -> str:
    """The policy that a row of MaxText names, in its notes or as its recomputation; its model's own where it
    says nothing, "" where it says something else or is another framework's."""
    if "MaxText" not in row.text("framework"):
        return ""
    word, stated = row.text("recompute"), STATED.search(row.notes)
    if word in POLICIES and word != "full":
        return word
    if stated:
        return stated[1]
    if row.known("recompute"):
        return ""
    name = row.text("model_name").lower()
    return next(one for start, one in OF_MODELS if name.startswith(start))
