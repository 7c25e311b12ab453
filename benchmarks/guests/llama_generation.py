"""A small Llama writes a few tokens greedily with its cache; the forward is compiled."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    vocab_size=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
model = LlamaForCausalLM(config).eval()
model.forward = torch.compile(model.forward)
ids = torch.tensor([[5, 6, 7, 8]])
out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
print(out.tolist())
