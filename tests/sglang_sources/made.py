"""A package `sglang` of a few lines that has what the patches look for, and pretend `torch` and `triton` beside it."""

from pathlib import Path

BACKEND = '''
from functools import partial


class Wrapper:
    _use_cuda_graph = False

    def plan(self, *args):
        self.planned = args

    def run(self, q, k):
        return q, k


class FlashInferMLAAttnBackend:
    def __init__(self, model_runner, skip_prefill=False):
        self.decode_wrapper = Wrapper()

    def init_forward_metadata_capture_cuda_graph(self, bs):
        decode_wrapper = Wrapper(kv_indices=self.cuda_graph_kv_indices)
        decode_wrapper.plan = partial(fast_mla_decode_plan, decode_wrapper)

    def forward_decode(self, q, k, v, layer, forward_batch):
        """What the real one says."""
        k_buffer = forward_batch.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)
        return self.forward_metadata.decode_wrapper.run(q, k_buffer)

    def forward_extend(self, q, k, v, layer, forward_batch):
        k_buffer = forward_batch.token_to_kv_pool.get_key_buffer(layer.layer_id).to(q.dtype)
        return self.forward_metadata.prefill_wrapper.run(q, k_buffer)


class FlashInferMLAIndicesUpdaterDecode:
    def call_begin_forward(self, wrapper, paged_kernel_lens_sum, q_indptr, kv_indptr, init_metadata_replay=False,
                           spec_info=None, **fast_decode_kwargs):
        kv_lens, kv_indices = self.req_to_token, fast_decode_kwargs["kv_indices"]
        if not init_metadata_replay:
            wrapper.plan(q_indptr, kv_indptr, kv_indices, kv_lens, 1)
        else:
            wrapper.plan(fast_decode_kwargs["qo_indptr_cpu"], fast_decode_kwargs["kv_indptr_cpu"], kv_indices, 1)


class FlashInferMLAIndicesUpdaterPrefill:
    def call_begin_forward(self, wrapper_paged, paged_kernel_lens_sum, qo_indptr, kv_indptr, use_ragged,
                           spec_info=None):
        kv_indices, kv_len_arr = self.kv_indices, kv_indptr[1:] - kv_indptr[:-1]
        wrapper_paged.plan(qo_indptr, kv_indptr, kv_indices, kv_len_arr, 1)
'''

GRAPH_RUNNER = """
class CudaGraphRunner:
    max_bs = 8

    def can_run(self, forward_batch):
        return forward_batch.batch_size <= self.max_bs
"""

MODEL_RUNNER = """
class Layer:
    def __init__(self, number):
        self.number = number

    def forward(self, x):
        return x + self.number


class Model:
    def __init__(self, n_layers):
        self.layers = [Layer(number) for number in range(n_layers)]
        self.towers = [Layer(100)]

    def named_modules(self):
        yield "", self
        yield "visual.layers.0", self.towers[0]
        yield "model.layers", self.layers
        for number, layer in enumerate(self.layers):
            yield f"model.layers.{number}", layer
            yield f"model.layers.{number}.mlp", object()


class ModelRunner:
    tp_rank = 3

    def __init__(self, is_draft_worker=False):
        self.is_draft_worker = is_draft_worker

    def load_model(self):
        self.model = Model(5)

    def _forward_raw(self, forward_batch, x):
        for layer in self.model.layers:
            x = layer.forward(x)
        return x

    def forward(self, forward_batch, x=0):
        return self._forward_raw(forward_batch, x)
"""

TORCH = '''
"""As much of torch as the patches touch without a GPU; `spans` are the names of those that were opened."""
from contextlib import contextmanager
from types import SimpleNamespace as Namespace

float8_e4m3fn, float8_e5m2, bfloat16 = "float8_e4m3fn", "float8_e5m2", "bfloat16"
spans, profiles = [], []


class Profile:
    running = False

    def __init__(self, **options):
        self.options = options
        profiles.append(self)

    def start(self):
        Profile.running = True

    def stop(self):
        Profile.running = False

    def export_chrome_trace(self, path):
        with open(path, "w") as file:
            file.write(str(len(spans)))

    def key_averages(self, group_by_input_shape):
        return Namespace(table=lambda sort_by, row_limit: sort_by)


@contextmanager
def record_function(name):
    spans.append(name)
    yield


autograd = Namespace(_profiler_enabled=lambda: Profile.running)
profiler = Namespace(profile=Profile, record_function=record_function)
compiler = Namespace(is_compiling=lambda: False)
cuda = Namespace(is_available=lambda: False)
distributed = Namespace(is_initialized=lambda: False)
'''

TRITON = """
def jit(**options):
    return lambda function: function
"""

SOURCES = {
    "sglang/srt/layers/attention/flashinfer_mla_backend.py": BACKEND,
    "sglang/srt/model_executor/cuda_graph_runner.py": GRAPH_RUNNER,
    "sglang/srt/model_executor/model_runner.py": MODEL_RUNNER,
    "torch.py": TORCH,
    "triton/__init__.py": TRITON,
    "triton/language.py": "constexpr = int\n",
}


def make(folder: Path) -> Path:
    """Writes the packages into a folder; the path of the package `sglang`."""
    for name, text in SOURCES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in [folder / "sglang", *(folder / "sglang").rglob("*/")]:
        (path / "__init__.py").touch()
    return folder / "sglang"
