"""A small ViT classifies images in channels-last memory."""

import torch
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
config = ViTConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=16,
    patch_size=8,
    num_labels=3,
)
model = torch.compile(ViTForImageClassification(config).eval())
images = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16).to(memory_format=torch.channels_last)
with torch.inference_mode():
    print([value.hex() for value in model(images).logits.flatten().tolist()])
