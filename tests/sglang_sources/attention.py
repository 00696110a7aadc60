"""Run with the hook: attention of a real release, gathered and not; prints what came out as JSON.

Arguments: the folder of the package, and `cpu` (else) or `cuda`. The backend, its updaters and the graph runner's
decision are the release's; the pool is a stand-in. On the CPU, with torch and triton (TRITON_INTERPRET=1), so are
FlashInfer and CUDA graphs: a graph is the list of calls made while it is captured. On a GPU both are real.
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

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
flashinfer = (
    importlib.import_module("flashinfer") if DEVICE == "cuda" else None
)  # before stand-ins for what it may lack
LEFT, RIGHT, N_HEADS, N_LAYERS = (32, 16, 4, 3) if DEVICE == "cpu" else (512, 64, 16, 3)
CONTEXT, N_REQUESTS, N_SLOTS, LONGEST = (64, 8, 256, 28) if DEVICE == "cpu" else (4096, 8, 30_000, 3000)
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


if DEVICE == "cpu":
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
    """FlashInfer's wrapper as far as SGLang uses it: the causal attention of each request over the rows it lists."""

    def __init__(self, workspace, *, use_cuda_graph=False, kv_indptr=None, kv_indices=None, backend="auto", **buffers):
        self._use_cuda_graph = use_cuda_graph
        self._kv_indptr_buf, self._kv_indices_buf = kv_indptr, kv_indices
        for name in ("_float_workspace_buffer", "_int_workspace_buffer", "_pin_memory_int_workspace_buffer"):
            setattr(self, name, None)
        self._cached_module = Namespace(plan=self._plan_fast)

    def _plan_fast(self, a, b, c, qo_indptr, kv_indptr, *others):
        self._queries, self._borders = qo_indptr.clone(), kv_indptr.clone()

    def plan(self, qo_indptr, kv_indptr, kv_indices, *others):
        self._queries, self._borders = qo_indptr.clone(), kv_indptr.clone()
        if self._use_cuda_graph:
            self._kv_indices_buf[: len(kv_indices)].copy_(kv_indices)
        else:
            self._kv_indices_buf = kv_indices

    def run(self, q_nope, q_rope, left, right, out, return_lse=False):
        assert left.dtype == right.dtype == torch.bfloat16

        def attend():
            for i in range(len(self._queries) - 1):
                rows = self._kv_indices_buf[self._borders[i] : self._borders[i + 1]].long()
                first, last = int(self._queries[i]), int(self._queries[i + 1])
                for j in range(first, last):
                    seen = rows[: len(rows) - (last - 1 - j)]
                    k, rope = left[seen, 0].float(), right[seen, 0].float()
                    weights = torch.softmax(q_nope[j].float() @ k.T + q_rope[j].float() @ rope.T, -1)
                    out[j] = (weights @ k).to(out.dtype)

        run(attend)
        return out


class MLATokenToKVPool:
    dtype, size, start_layer, page_size = torch.float8_e4m3fn, N_SLOTS - 1, 0, 1

    def __init__(self):
        rows = [torch.randn(N_SLOTS, 1, LEFT + RIGHT).to(self.dtype) for _ in range(N_LAYERS)]
        self.layers = [layer.to(DEVICE) for layer in rows]
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
    "BatchMLAPagedAttentionWrapper": Wrapper if flashinfer is None else flashinfer.mla.BatchMLAPagedAttentionWrapper,
    "BatchPrefillWithRaggedKVCacheWrapper": lambda *args, **kwargs: None,
    "FlashInferMhaChunkKVRunner": lambda *args: None,
    "create_flashinfer_kv_indices_triton": ListSlots(),
    "envs": Namespace(SGLANG_FLASHINFER_WORKSPACE_SIZE=Namespace(get=lambda: 16 if DEVICE == "cpu" else 1 << 27)),
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
table = torch.zeros(N_REQUESTS, CONTEXT, dtype=torch.int32, device=DEVICE)
listed = torch.randperm(N_SLOTS - 1)[: N_REQUESTS * LONGEST] + 1
table[:, :LONGEST] = listed.to(table).view(N_REQUESTS, LONGEST)
table[2, : LONGEST * 5 // 7] = table[5, : LONGEST * 5 // 7]  # a prefix in common
table[6, : LONGEST * 2 // 5] = table[5, : LONGEST * 2 // 5]
widths = {"tp_q_head_num": N_HEADS, "head_dim": LEFT + RIGHT, "v_head_dim": LEFT}
layers = [Namespace(layer_id=i, logit_cap=0, **widths) for i in range(N_LAYERS)]


class Mode:
    """A forward mode: `is_...()` is true of the names that it is given."""

    def __init__(self, *names):
        self._names = names

    def __getattr__(self, name):
        return lambda: name in self._names


decode_mode, extend_mode = Mode("is_decode_or_idle", "is_decode"), Mode("is_extend")
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
        device=DEVICE,
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
            "req_pool_indices": torch.tensor(requests, device=DEVICE),
            "seq_lens": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
            "seq_lens_cpu": torch.tensor(lengths, dtype=torch.int32),
            "seq_lens_sum": sum(lengths),
            "positions": torch.zeros(n, device=DEVICE),
            "spec_info": None,
            "kv_loc_plan": None,
            "token_to_kv_pool": pool,
            "out_cache_loc": None,
            "attn_attend_prefix_cache": None,
            "attn_dcp_metadata": None,
            "replace_embeds": None,
            "input_ids": torch.zeros(n),
            "capture_hidden_mode": 0,
        }
        | changed
    )


def queries(n):
    return (torch.randn(n, N_HEADS, LEFT + RIGHT) / LEFT**0.5).bfloat16().to(DEVICE)


def parts(q):
    return q[..., :LEFT].reshape(len(q), -1), q[..., LEFT:].reshape(len(q), -1)


def eager(backend, requests, lengths, q, **written):
    batch = batch_of(requests, lengths, out_cache_loc=written.pop("slots", None))
    backend.init_forward_metadata(batch)
    outputs = attend(backend, batch, *parts(q), **written)
    assert batch.token_to_kv_pool is pool
    return torch.stack([output.view(len(q), -1) for output in outputs])


def prefill(backend, requests, prefixes, lengths, q, **written):
    """One prefill pass' attention: the tokens of each request from its prefix on, which the pool has already."""
    batch = batch_of(
        requests,
        lengths,
        forward_mode=extend_mode,
        extend_prefix_lens=torch.tensor(prefixes, dtype=torch.int32, device=DEVICE),
        extend_prefix_lens_cpu=prefixes,
        out_cache_loc=written.pop("slots", None),
    )
    backend.init_forward_metadata(batch)
    k, k_rope = written.get("k"), written.get("k_rope")
    q_nope, q_rope = parts(q)
    outputs = [backend.forward_extend(q_nope, k, k, layer, batch, q_rope=q_rope, k_rope=k_rope) for layer in layers]
    assert batch.token_to_kv_pool is pool
    return torch.stack([output.view(len(q), -1) for output in outputs])


def captured(call):
    """What a call captures: a function that replays it, and what it returned."""
    global tape  # noqa: PLW0603 - what is captured
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            returned = call()
        return graph.replay, returned
    tape = calls = []
    returned = call()
    tape = None
    return (lambda: [again() for again in calls]), returned


class Graphs:
    """Captured decode steps, replayed as the release's runner does it: padded to the next captured batch size."""

    def __init__(self, backend):
        self.backend, self.replays, self.outputs = backend, {}, {}
        backend.init_cuda_graph_state(8, 8)
        self.requests = torch.zeros(8, dtype=torch.int64, device=DEVICE)
        self.lengths = torch.ones(8, dtype=torch.int32, device=DEVICE)
        self.q = parts(queries(8))
        for n in reversed(CAPTURED):
            batch = batch_of([0] * n, [1] * n, req_pool_indices=self.requests[:n], seq_lens=self.lengths[:n])
            self._plan_capture(batch)
            q = [part[:n] for part in self.q]
            attend(backend, batch, *q)  # runners warm up before they capture
            self.replays[n], self.outputs[n] = captured(lambda batch=batch, q=q: attend(backend, batch, *q))

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
        self.requests[:n] = torch.tensor(requests, device=DEVICE)
        self.lengths[:n] = torch.tensor(lengths, device=DEVICE)
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
        self.replays[padded]()
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
    return random.sample(range(N_REQUESTS), n), [random.randint(1, LONGEST) for _ in range(n)]


def same(a, b):
    return bool(torch.equal(a, b)) and not bool(a.isnan().any())


BATCHES = [([0], [1]), ([3], [LONGEST]), ([5, 2, 7], [9, LONGEST, 1]), ([5, 2, 6], [LONGEST] * 3)]
BATCHES += [(list(range(8)), [LONGEST] * 8)]
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
        replayed = graphs.replay(requests, lengths, q)
        row["n_graph_gathers"] = kernel_calls - before
        plainly = graphs_plain.replay(requests, lengths, q)
        row["graph"] = same(replayed, plainly)
        # FlashInfer splits a padded batch in another way: of its results not all bits are the same
        row["graph_plain"] = same(plainly, expected) or (
            DEVICE == "cuda" and torch.allclose(plainly, expected, 1e-2, 1e-2)
        )
    else:
        try:
            graphs.replay(requests, lengths, q)
            row["refused"] = ""
        except RuntimeError as error:
            row["refused"] = str(error)
    found.append(row)
results["batches"] = found

# prefill that reads the pool: some tokens of each request, behind a prefix that the pool has
results["prefill"] = []
for requests, lengths in BATCHES:
    prefixes = [length - random.randint(1, min(length, 3)) for length in lengths]
    if not any(prefixes):
        continue
    q = queries(sum(lengths) - sum(prefixes))
    expected = prefill(plain, requests, prefixes, lengths, q)
    before = kernel_calls
    is_same = same(prefill(gathering, requests, prefixes, lengths, q), expected)
    row = {"n_listed": sum(lengths), "is_same": is_same, "n_gathers": kernel_calls - before}
    results["prefill"].append(row)

# what a pass writes is there before it reads
requests, lengths, slots = [1, 4], [7, 9], table[torch.tensor([1, 4]), torch.tensor([6, 8])].long()


def new_rows():
    rows = torch.randn(2, 1, LEFT + RIGHT).bfloat16().to(DEVICE)
    return {"slots": slots, "k": rows[..., :LEFT], "k_rope": rows[..., LEFT:]}


q = queries(2)
output = eager(gathering, requests, lengths, q, **new_rows())
results["written first"] = pool.n_written == N_LAYERS and same(output, eager(plain, requests, lengths, q))
output = prefill(gathering, requests, [6, 8], lengths, q, **new_rows())
results["prefilled first"] = pool.n_written == 2 * N_LAYERS and same(
    output, prefill(plain, requests, [6, 8], lengths, q)
)

# a wrong row must show, or the comparisons say nothing
outputs = [eager(gathering, [1], [5], q[:1]), prefill(gathering, [1], [4], [5], q[:1])]
for layer in pool.layers:
    layer.view(torch.uint8)[table[1, 2].item()] += 8
changed = [eager(gathering, [1], [5], q[:1]), prefill(gathering, [1], [4], [5], q[:1])]
results["a wrong row shows"] = not any(map(torch.equal, outputs, changed))
print(json.dumps(results))
