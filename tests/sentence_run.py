"""What sentence-transformers makes of folders: of published ones in PyTorch, of builds by its ONNX backend.

Runs by itself, in an environment that has sentence-transformers. Reads a task, and prints numbers as JSON.
"""

import json
import sys

import numpy as np
import sentence_transformers
from sentence_transformers import CrossEncoder, SentenceTransformer


def main(task) -> None:
    made = {"version": sentence_transformers.__version__}
    for name, (folder, backend, texts, prompt) in task.get("embed", {}).items():
        model = SentenceTransformer(folder, backend=backend, device="cpu")
        made[name] = np.asarray(model.encode(texts, batch_size=8, prompt_name=prompt), np.float64).tolist()
    for name, (folder, backend, query, documents) in task.get("rank", {}).items():
        model = CrossEncoder(folder, backend=backend, device="cpu")
        scores = {each["corpus_id"]: float(each["score"]) for each in model.rank(query, documents)}
        made[name] = [scores[i] for i in range(len(documents))]
    print(json.dumps(made))


if __name__ == "__main__":
    main(json.loads(sys.stdin.read()))
