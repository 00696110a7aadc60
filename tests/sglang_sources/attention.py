"""Run with the hook: decode attention of a real release on the CPU, gathered and not; prints what came out as JSON.

Arguments: the folder of the package, the rows of the buffer, and whether shared prefixes are gathered once. Needs torch
and, for the kernel, triton with TRITON_INTERPRET=1. The backend, its updater and the graph runner's decision are the
release's; FlashInfer, the pool and CUDA graphs are stand-ins: a graph is the list of calls made while it is captured.
"""
# pyright: basic, reportMissingImports=false, reportOptionalSubscript=false, reportAttributeAccessIssue=false

import importlib
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace as Namespace

import torch
from stubs import stand_in_for_all_but

LEFT, RIGHT, N_HEADS, N_LAYERS = 32, 16, 4, 3
CONTEXT, N_REQUESTS, N_SLOTS = 64, 8, 256
BACKEND = "sglang.srt.layers.attention.flashinfer_mla_backend"
RUNNERS = {
    "sglang.srt.model_executor.cuda_graph_runner": ("CudaGraphRunner", "can_run"),
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner": ("DecodeCudaGraphRunner", "can_run_graph"),
}
CAPTURED = [1, 2, 4, 8]

package = Path(sys.argv[1])
runner_name = next(name for name in RUNNERS if package.joinpath(*name.split(".")[1:]).with_suffix(".py").exists())
stand_in_for_all_but({BACKEND, runner_name}, package)


def on_cpu(make):
    def made(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        return make(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))

    return made


for name in ("empty", "zeros", "arange", "ones", "full"):
    setattr(torch, name, on_cpu(getattr(torch, name)))
torch.cuda.get_device_properties = lambda device: Namespace(multi_processor_count=2)
torch.manual_seed(5)
random.seed(5)

tape = None
"""While a graph is captured: what it would run again."""


def run(call):
    call()
    if tape is not None:
        tape.append(call)


class Wrapper:
    """FlashInfer's wrapper as far as SGLang uses it: the attention of each request over the rows it lists."""

    def __init__(self, workspace, *, use_cuda_graph=False, kv_indptr=None, kv_indices=None, backend, **buffers):
        self._use_cuda_graph = use_cuda_graph
        self._kv_indptr_buf, self._kv_indices_buf = kv_indptr, kv_indices
        for name in ("_float_workspace_buffer", "_int_workspace_buffer", "_pin_memory_int_workspace_buffer"):
            setattr(self, name, None)
        self._cached_module = Namespace(plan=self._plan_fast)

    def _plan_fast(self, a, b, c, qo_indptr, kv_indptr, *others):
        self._borders = kv_indptr.clone()

    def plan(self, qo_indptr, kv_indptr, kv_indices, *others):
        self._borders = kv_indptr.clone()
        if self._use_cuda_graph:
            self._kv_indices_buf[: len(kv_indices)].copy_(kv_indices)
        else:
            self._kv_indices_buf = kv_indices

    def run(self, q_nope, q_rope, left, right, out, return_lse=False):
        assert left.dtype == right.dtype == torch.bfloat16

        def attend():
            for i in range(len(q_nope)):
                rows = self._kv_indices_buf[self._borders[i] : self._borders[i + 1]].long()
                k, rope = left[rows, 0].float(), right[rows, 0].float()
                weights = torch.softmax(q_nope[i].float() @ k.T + q_rope[i].float() @ rope.T, -1)
                out[i] = (weights @ k).to(out.dtype)

        run(attend)
        return out


class MLATokenToKVPool:
    dtype, size, start_layer, page_size = torch.float8_e4m3fn, N_SLOTS - 1, 0, 1

    def __init__(self):
        self.layers = [torch.randn(N_SLOTS, 1, LEFT + RIGHT).to(self.dtype) for _ in range(N_LAYERS)]
        self.n_written = 0

    def get_key_buffer(self, layer_id):
        return self.layers[layer_id]

    def set_mla_kv_buffer(self, layer, slots, k, k_rope):
        self.n_written += 1
        rows = torch.cat([k, k_rope], -1).to(self.dtype)
        self.layers[layer.layer_id].view(torch.uint8)[slots] = rows.view(torch.uint8)


def list_slots(table, requests, lengths, borders, out):
    for i, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        out[int(borders[i]) : int(borders[i]) + length] = table[request, :length]


class ListSlots:
    """The kernel that lists a batch's slots, as SGLang starts it."""

    def __getitem__(self, grid):
        return lambda table, requests, lengths, borders, start, out, stride: list_slots(
            table, requests, lengths, borders, out
        )


class Translator:
    needs_read_translate = False

    def pack_read_stream(self, plan, *, req_pool_indices, seq_lens, indptr, out):
        list_slots(table, req_pool_indices, seq_lens, indptr, out)
        return True


module = importlib.import_module(BACKEND)
parallel = Namespace(dcp_enabled=False, attn_tp_size=1, attn_dcp_size=1)
args = Namespace(
    disaggregation_mode="null",
    disable_chunked_prefix_cache=False,
    flashinfer_mla_disable_ragged=False,
    speculative_algorithm=None,
    enable_dp_attention=False,
    enable_two_batch_overlap=False,
    enable_pdmux=False,
    attn_dp_size=1,
    dcp_size=1,
    disable_radix_cache=False,
)
STAND_INS = {
    "BatchMLAPagedAttentionWrapper": Wrapper,
    "BatchPrefillWithRaggedKVCacheWrapper": lambda *args, **kwargs: None,
    "FlashInferMLAIndicesUpdaterPrefill": lambda *args: None,
    "FlashInferMhaChunkKVRunner": lambda *args: None,
    "create_flashinfer_kv_indices_triton": ListSlots(),
    "envs": Namespace(SGLANG_FLASHINFER_WORKSPACE_SIZE=Namespace(get=lambda: 16)),
    "get_buffer": lambda name, make: make(),
    "get_global_server_args": lambda: args,
    "get_disagg": lambda: args,
    "get_schedule": lambda: args,
    "get_exec": lambda: Namespace(kernel=args),
    "get_platform": lambda: Namespace(is_sm100=False),
    "is_sm100_supported": lambda: False,
    "get_attention_tp_size": lambda: 1,
    "get_parallel": lambda: parallel,
    "get_cuda_graph_max_batch_size": lambda size: size,
    "update_local_kv_lens_for_dcp": lambda lengths: None,
    "KVWriteLoc": Namespace(for_batch=lambda batch: batch.out_cache_loc),
}
vars(module).update(STAND_INS)

kernel_calls = 0
patch_kernel = sys.modules["traceql_patch_gather_then_cast.kernel"]
gather_cast = patch_kernel.gather_cast


def counted_gather_cast(*args, **kwargs):
    def launch():
        global kernel_calls  # noqa: PLW0603 - a counter
        kernel_calls += 1
        gather_cast(*args, **kwargs)

    run(launch)


patch_kernel.gather_cast = counted_gather_cast

pool = MLATokenToKVPool()
table = torch.zeros(N_REQUESTS, CONTEXT, dtype=torch.int32)
table[:, :28] = (torch.randperm(N_SLOTS - 1)[: N_REQUESTS * 28] + 1).to(torch.int32).view(N_REQUESTS, 28)
table[2, :20] = table[5, :20]  # a prefix in common
table[6, :11] = table[5, :11]
layers = [Namespace(layer_id=i, tp_q_head_num=N_HEADS, head_dim=LEFT + RIGHT, v_head_dim=LEFT) for i in range(N_LAYERS)]
decode_mode = Namespace(is_decode_or_idle=lambda: True, is_decode=lambda: True, is_target_verify=lambda: False)
config = Namespace(
    context_len=CONTEXT,
    num_attention_heads=N_HEADS,
    kv_lora_rank=LEFT,
    qk_nope_head_dim=24,
    qk_rope_head_dim=RIGHT,
    v_head_dim=LEFT,
    scaling=1.0,
)


def model_runner(**changed):
    return Namespace(
        model_config=config,
        device="cpu",
        page_size=1,
        dtype=torch.bfloat16,
        kv_index_translator=Translator(),
        req_to_token_pool=Namespace(size=N_REQUESTS, req_to_token=table),
        token_to_kv_pool=pool,
        server_args=Namespace(**vars(args) | changed),
    )


def attend(backend, batch, q_nope, q_rope, k=None, k_rope=None):
    """One decode step's attention, all layers: their outputs."""
    return [backend.forward_decode(q_nope, k, k, layer, batch, q_rope=q_rope, k_rope=k_rope) for layer in layers]


def batch_of(requests, lengths, **changed):
    n = len(requests)
    return Namespace(
        **{
            "batch_size": n,
            "forward_mode": decode_mode,
            "req_pool_indices": torch.tensor(requests),
            "seq_lens": torch.tensor(lengths, dtype=torch.int32),
            "seq_lens_cpu": torch.tensor(lengths, dtype=torch.int32),
            "seq_lens_sum": sum(lengths),
            "positions": torch.zeros(n),
            "spec_info": None,
            "kv_loc_plan": None,
            "token_to_kv_pool": pool,
            "out_cache_loc": None,
            "replace_embeds": None,
            "input_ids": torch.zeros(n),
            "capture_hidden_mode": 0,
        }
        | changed
    )


def parts(q):
    return q[..., :LEFT].reshape(len(q), -1), q[..., LEFT:].reshape(len(q), -1)


def eager(backend, requests, lengths, q, **written):
    batch = batch_of(requests, lengths, out_cache_loc=written.pop("slots", None))
    backend.init_forward_metadata(batch)
    outputs = attend(backend, batch, *parts(q), **written)
    assert batch.token_to_kv_pool is pool
    return torch.stack([output.view(len(q), -1) for output in outputs])


class Graphs:
    """Captured decode steps, replayed as the release's runner does it: padded to the next captured batch size."""

    def __init__(self, backend):
        global tape  # noqa: PLW0603 - what is captured
        self.backend, self.tapes, self.outputs = backend, {}, {}
        backend.init_cuda_graph_state(8, 8)
        self.requests = torch.zeros(8, dtype=torch.int64)
        self.lengths = torch.ones(8, dtype=torch.int32)
        self.q = parts(torch.randn(8, N_HEADS, LEFT + RIGHT).bfloat16())
        for n in reversed(CAPTURED):
            batch = batch_of([0] * n, [1] * n, req_pool_indices=self.requests[:n], seq_lens=self.lengths[:n])
            self._plan_capture(batch)
            q = [part[:n] for part in self.q]
            attend(backend, batch, *q)  # runners warm up before they capture
            tape = []
            self.outputs[n] = attend(backend, batch, *q)
            self.tapes[n], tape = tape, None

    def _plan_capture(self, batch):
        if hasattr(self.backend, "init_forward_metadata_out_graph"):
            self.backend.init_forward_metadata_out_graph(batch, in_capture=True)
        else:
            n = batch.batch_size
            self.backend.init_forward_metadata_capture_cuda_graph(
                n, n, batch.req_pool_indices, batch.seq_lens, None, decode_mode, None
            )

    def _plan_replay(self, batch):
        if hasattr(self.backend, "init_forward_metadata_out_graph"):
            self.backend.init_forward_metadata_out_graph(batch)
        else:
            self.backend.init_forward_metadata_replay_cuda_graph(
                batch.batch_size,
                batch.req_pool_indices,
                batch.seq_lens,
                batch.seq_lens_sum,
                None,
                decode_mode,
                None,
                seq_lens_cpu=batch.seq_lens_cpu,
            )

    def replay(self, requests, lengths, q):
        n = len(requests)
        padded = next(size for size in CAPTURED if size >= n)
        self.requests.zero_()
        self.lengths.fill_(1)
        self.requests[:n], self.lengths[:n] = torch.tensor(requests), torch.tensor(lengths)
        for buffer, part in zip(self.q, parts(q), strict=True):
            buffer[:n] = part
        self._plan_replay(
            batch_of(
                [0] * padded,
                self.lengths[:padded].tolist(),
                req_pool_indices=self.requests[:padded],
                seq_lens=self.lengths[:padded],
            )
        )
        for output in self.outputs[padded]:
            output.fill_(float("nan"))
        for call in self.tapes[padded]:
            call()
        return torch.stack([output.view(padded, -1)[:n] for output in self.outputs[padded]])


def admitted(backend, requests, lengths):
    """What the release's graph runner says of a batch."""
    holder, decide = RUNNERS[runner_name]
    runner_type = getattr(sys.modules[runner_name], holder)
    runner = object.__new__(runner_type)
    facts = {"attn_backend": backend, "capture_bs": CAPTURED, "seq_len_fill_value": 1, "max_bs": 8}
    switches = ("require_mlp_tp_gather", "enable_pdmux", "disable_padding", "require_mlp_sync", "is_encoder_decoder")
    switches += ("enable_two_batch_overlap", "ragged_verify_mode", "record_nolora_graph")
    runner.__dict__.update(facts, **dict.fromkeys(switches, False), capture_hidden_mode=0)
    runner.model_runner = Namespace(spec_algorithm=Namespace(is_ngram=lambda: False))
    sys.modules[runner_name].CaptureHiddenMode = Namespace(NULL=0)
    return bool(getattr(runner, decide)(batch_of(requests, lengths)))


importlib.import_module(runner_name)
backend_type = module.FlashInferMLAAttnBackend
plain = backend_type(model_runner(enable_pdmux=True))  # the patch leaves it as it is
gathering = backend_type(model_runner())
results = {"rows": gathering.traceql_staging.n_rows, "listed": gathering.traceql_staging.n_listed}


class Derived(backend_type):
    pass


others = [
    backend_type(model_runner(), skip_prefill=True),
    Derived(model_runner()),
    *(
        backend_type(model_runner(**changed))
        for changed in ({"speculative_algorithm": "EAGLE"}, {"enable_dp_attention": True})
    ),
]
results["left as they are"] = [other.traceql_staging is None for other in others]


def random_batch():
    n = random.randint(1, 8)
    return random.sample(range(N_REQUESTS), n), [random.randint(1, 28) for _ in range(n)]


def queries(n):
    return torch.randn(n, N_HEADS, LEFT + RIGHT).bfloat16()


def same(a, b):
    return bool(torch.equal(a, b)) and not bool(a.isnan().any())


BATCHES = [([0], [1]), ([3], [28]), ([5, 2, 7], [9, 28, 1]), ([5, 2, 6], [28, 28, 28]), (list(range(8)), [28] * 8)]
BATCHES += [random_batch() for _ in range(4)]
graphs_plain, graphs = Graphs(plain), Graphs(gathering)
found = []
for requests, lengths in BATCHES:
    q = queries(len(requests))
    fits = admitted(gathering, requests, lengths)
    expected = eager(plain, requests, lengths, q)
    before = kernel_calls
    slots = torch.cat([table[request, :length] for request, length in zip(requests, lengths, strict=True)])
    row = {
        "n_listed": len(slots),
        "n_padding": next(size for size in CAPTURED if size >= len(requests)) - len(requests),
        "n_slots": len(slots.unique()),
        "admitted": fits,
        "eager": same(eager(gathering, requests, lengths, q), expected),
        "n_gathers": kernel_calls - before,
    }
    if fits and gathering.traceql_staging.shared is not None:
        row["n_packed"] = int(gathering.traceql_staging.shared.count)
    if fits:
        before = kernel_calls
        row["graph"] = same(graphs.replay(requests, lengths, q), expected)
        row["graph_plain"] = same(graphs_plain.replay(requests, lengths, q), expected)
        row["n_graph_gathers"] = kernel_calls - before
    else:
        try:
            graphs.replay(requests, lengths, q)
            row["refused"] = ""
        except RuntimeError as error:
            row["refused"] = str(error)
    found.append(row)
results["batches"] = found

# what a step writes is there before the step reads
slots = table[torch.tensor([1, 4]), torch.tensor([6, 8])].long()
written = {"slots": slots, "k": torch.randn(2, 1, LEFT).bfloat16(), "k_rope": torch.randn(2, 1, RIGHT).bfloat16()}
q = queries(2)
output = eager(gathering, [1, 4], [7, 9], q, **written)
results["written first"] = pool.n_written == N_LAYERS and same(output, eager(plain, [1, 4], [7, 9], q))

# a wrong row must show, or the comparisons say nothing
output = eager(gathering, [1], [5], q[:1])
for layer in pool.layers:
    layer.view(torch.uint8)[table[1, 2].item()] += 8
results["a wrong row shows"] = not torch.equal(output, eager(gathering, [1], [5], q[:1]))
print(json.dumps(results))
