"""How a layer is cut over the tensor-parallel ranks; one file per strategy."""
