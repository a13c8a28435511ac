"""What an operation is, what it stands with, and what it is called."""

from ops.roles import Identity, Module, OpKey, Role

QKV = OpKey(Module.ATTENTION, Role.QKV)


def test_a_label_is_made_of_module_and_roles_unless_one_is_given() -> None:
    assert Identity(module=Module.MLP, role=Role.UP).name == "mlp.up"
    assert QKV.served_by(Role.ENTER).name == "attention.qkv.enter"
    assert QKV.served_by(Role.COPY, "attention.qkv.join").name == "attention.qkv.join"


def test_what_serves_an_operation_stands_with_it_and_is_another() -> None:
    cast = QKV.served_by(Role.CAST)
    assert (cast.served, cast.key) == (QKV, OpKey(Module.ATTENTION, Role.CAST, Role.QKV))
    norm = Identity(module=Module.ATTENTION, role=Role.NORM)
    assert cast.is_within({QKV})
    assert cast.is_within({Module.ATTENTION})
    assert not norm.is_within({QKV, Module.MLP})
    assert norm.served == norm.key
