"""What packed samples would call; a CPU run does not pack."""


def _absent(*args, **kwargs):
    raise RuntimeError("flash-attn is not there on a CPU; leave --ds.packing_samples and ring attention off")


index_first_axis = pad_input = rearrange = unpad_input = _absent
