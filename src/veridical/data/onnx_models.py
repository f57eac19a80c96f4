"""Models in the ONNX format, run by onnxruntime: rows in, outputs out, no gradients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veridical.data.files import existing_file, require
from veridical.errors import FormatError, InputError, ShapeError

TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}
FLOAT_TYPES = ("tensor(float)", "tensor(double)", "tensor(float16)")


class OnnxFunction:
    """An ONNX model as a function of arrays; one made for a fixed batch gets batches of that size.

    The response is the output of that name; by default the first of floats.
    """

    def __init__(self, path: str | Path, output_name: str | None = None) -> None:
        require("onnxruntime")
        require("onnx")
        import onnxruntime

        self.path = Path(path)
        existing_file(self.path)
        places = check_external_data(self.path)
        # results are found again by this: the session itself cannot be compared
        self.content_digest = _digest([self.path, *places])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        try:
            self.session = onnxruntime.InferenceSession(
                str(self.path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors share no base but this
            raise FormatError(f"onnxruntime cannot load {self.path.name}: {error}") from error
        self.inputs = self.session.get_inputs()
        offered = {output.name: output.type for output in self.session.get_outputs()}
        if output_name is not None and output_name not in offered:
            raise InputError(f"the model has outputs {list(offered)}, not '{output_name}'")
        # classifiers often give a label first, and no response is read from integers
        scores = [name for name, kind in offered.items() if kind in FLOAT_TYPES]
        self.output_name = output_name or next(iter(scores or offered))
        batch = self.inputs[0].shape[0] if self.inputs[0].shape else None
        self.batch = batch if isinstance(batch, int) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxFunction, (self.path, self.output_name)

    def check_rows(self, shape: Sequence[int]) -> None:
        """Refuse rows of another shape than the model declares for its first input."""
        declared = list(self.inputs[0].shape[1:])
        fits = len(declared) == len(shape) and all(
            not isinstance(want, int) or want == have for want, have in zip(declared, shape, strict=True)
        )
        if not fits:
            raise ShapeError(
                f"{self.path.name} takes rows of shape ({', '.join(map(str, declared))}), the data has rows "
                f"of shape {tuple(shape)}"
            )

    def __call__(self, rows: np.ndarray[Any, Any], *side: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        given = [np.asarray(rows), *map(np.asarray, side)]
        if len(given) != len(self.inputs):
            names = [entry.name for entry in self.inputs]
            raise InputError(f"the model takes {names}; give the first as inputs and the others as side=")
        feeds = [
            array.astype(TYPES.get(entry.type, array.dtype))
            for array, entry in zip(given, self.inputs, strict=True)
        ]
        count = len(feeds[0])
        size = self.batch or count
        parts = []
        for at in range(0, count, size):
            piece = [_padded(array[at : at + size], size) for array in feeds]
            feed = {entry.name: array for entry, array in zip(self.inputs, piece, strict=True)}
            parts.append(np.asarray(self.session.run([self.output_name], feed)[0]))
        answer = np.concatenate(parts)[:count]
        if answer.dtype.kind != "f":
            offered = [output.name for output in self.session.get_outputs()]
            raise InputError(
                f"the output '{self.output_name}' holds {answer.dtype} values, which are no responses; "
                f"choose another from {offered}: OnnxFunction(path, output_name)"
            )
        return answer


def _padded(rows: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Repeat the last row up to `size` rows."""
    missing = size - len(rows)
    return rows if missing <= 0 else np.concatenate([rows, np.repeat(rows[-1:], missing, 0)])


def _digest(paths: Sequence[Path]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.digest()


def check_external_data(path: Path) -> list[Path]:
    """The files a model's weights lie in; any outside its own folder, also by way of a link, is refused."""
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's DecodeError has moved between its versions
        raise FormatError(f"{path.name} is not an ONNX model: {error}") from error
    folder = path.resolve().parent
    found: dict[Path, None] = {}
    for tensor in _tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        places = [entry.value for entry in tensor.external_data if entry.key == "location"]
        for place in places:
            if not (folder / place).resolve().is_relative_to(folder):
                raise FormatError(
                    f"{path.name} wants to read '{place}', which lies outside its folder; that is refused"
                )
            if not (folder / place).is_file():
                raise FormatError(f"the weights of {path.name} lie in '{place}', which is not there")
            found[folder / place] = None
    return list(found)


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor of a model: initial values and attributes, in functions and nested graphs too."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
            continue
        for attribute in nodes.pop().attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            graphs.extend([attribute.g, *attribute.graphs])
