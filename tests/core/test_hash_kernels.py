"""The hashes as kernels: their source is C++ enough to be compiled and run by a processor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

from veridical.core import hash_kernels, keyed, subset_draws

COMPILER = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")

CASES = {
    "mix": (hash_kernels.MIX, keyed._mix_steps, torch.int64, "long long"),
    "ticket": (hash_kernels.TICKET, subset_draws._ticket_steps, torch.int32, "int"),
}


def compiled(name: str, source: str, kind: str, arguments: int, folder):
    """The kernel over a flat array: what a GPU's threads do, one after the other."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    given = ", ".join(f"const {kind}* a{i}" for i in range(arguments))
    taken = ", ".join(f"a{i}[k]" for i in range(arguments))
    loop = f'extern "C" void run(int n, {kind}* out, {given}) {{ for (int k = 0; k < n; ++k) out[k] = '
    (folder / "hash.cpp").write_text(source + loop + f"{name}<{kind}>({taken}); }}")
    call = [COMPILER, "-O1", "-shared", "-fPIC", "-o", str(folder / "hash.so"), str(folder / "hash.cpp")]
    subprocess.run(call, check=True, capture_output=True)
    library = ctypes.CDLL(str(folder / "hash.so"))

    def run(*tensors):
        tensors = [tensor.contiguous() for tensor in torch.broadcast_tensors(*tensors)]
        out = torch.empty_like(tensors[0])
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (out, *tensors)]
        library.run(out.numel(), *pointers)
        return out

    return run


def agrees(run, steps, tensors) -> bool:
    return torch.equal(run(*tensors), steps(*tensors))


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_gives_the_bits_of_its_steps(name, tmp_path):
    source, steps, dtype, kind = CASES[name]
    trial = hash_kernels.trials(source, dtype, torch.device("cpu"))
    run = compiled(name, source, kind, len(trial), tmp_path)
    info, draw = torch.iinfo(dtype), torch.Generator().manual_seed(0)
    many = [torch.randint(info.min, info.max, (500, 1), generator=draw, dtype=dtype) for _ in trial]
    many[0] = many[0].T
    assert agrees(run, steps, trial)
    assert agrees(run, steps, many)


@pytest.mark.parametrize(
    ("name", "right", "wrong"), [("mix", ">> 27", ">> 26"), ("ticket", "0x7FFF", "0x3FFF")]
)
def test_a_changed_kernel_is_found_by_the_trial(name, right, wrong, tmp_path):
    source, steps, dtype, kind = CASES[name]
    trial = hash_kernels.trials(source, dtype, torch.device("cpu"))
    assert right in source
    run = compiled(name, source.replace(right, wrong), kind, len(trial), tmp_path)
    assert not agrees(run, steps, trial)


def test_trials_have_one_tensor_an_argument():
    assert [len(hash_kernels.trials(case[0], case[2], torch.device("cpu"))) for case in CASES.values()] == [
        1,
        3,
    ]


def test_the_steps_are_taken_on_a_processor():
    assert hash_kernels.kernel(hash_kernels.MIX, keyed._mix_steps, torch.int64, torch.device("cpu")) is None


def test_a_compiler_that_fails_leaves_the_steps(monkeypatch):
    def fails(source):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", fails)
    assert (
        hash_kernels.kernel(hash_kernels.MIX + "\n", keyed._mix_steps, torch.int64, torch.device("cuda", 0))
        is None
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_only_a_kernel_that_agrees_is_used(monkeypatch, wrong):
    cpu_trials = hash_kernels.trials
    monkeypatch.setattr(hash_kernels, "trials", lambda s, d, _: cpu_trials(s, d, torch.device("cpu")))
    monkeypatch.setattr(
        torch.cuda.jiterator, "_create_jit_fn", lambda source: lambda x: keyed._mix_steps(x) + int(wrong)
    )
    source = hash_kernels.MIX + "\n" * (2 + wrong)  # another name in the cache
    found = hash_kernels.kernel(source, keyed._mix_steps, torch.int64, torch.device("cuda", 0))
    assert (found is None) is wrong
