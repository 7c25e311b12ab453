"""A Llama of transformers with a static cache under CUDA graphs; logits of all steps are kept."""

# right program
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=128,
)
model = LlamaForCausalLM(config).cuda().eval()
step = torch.compile(model.forward, mode="reduce-overhead")
cache = StaticCache(config=config, max_cache_len=64)
ids = torch.randint(0, 512, (1, 1), device="cuda")
logits = []
with torch.no_grad():
    for place in range(5):
        out = step(input_ids=ids, past_key_values=cache, cache_position=torch.tensor([place], device="cuda"))
        logits.append(out.logits)
        ids = out.logits[:, -1:].argmax(-1)
print(torch.cat(logits).sum().item())
