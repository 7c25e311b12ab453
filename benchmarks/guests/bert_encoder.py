"""A small BERT in evaluation, with a padding mask."""

import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
config = BertConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=40
)
model = torch.compile(BertModel(config).eval())
mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
with torch.no_grad():
    out = model(input_ids=torch.arange(12).reshape(2, 6), attention_mask=mask)
print(out.last_hidden_state.sum().item().hex(), tuple(out.pooler_output.shape))
