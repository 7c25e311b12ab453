import torch
from transformers import BertConfig, BertModel


class Classifier(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config)
        self.head = torch.nn.Linear(config.hidden_size, 2)

    def forward(self, ids):
        hidden = self.bert(ids).last_hidden_state
        weights = hidden.norm(dim=-1)
        if weights.max() > 1e3:
            hidden = hidden / weights.max()
        return self.head(hidden[:, 0])


config = BertConfig(
    hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=40
)
model = Classifier(config).eval()
with torch.no_grad():
    torch.compile(model, fullgraph=True)(torch.randint(0, 40, (2, 7)))
