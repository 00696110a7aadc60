"""Attention that casts only the KV rows it reads. Runs in the server's processes.

As it stands, FlashInfer's MLA backend casts a layer's whole pool and hands the attention a list of slots. Here the
slots on that list are packed, in the wanted type, into a buffer, and the attention is handed the places in the buffer.
Both are decided when a batch is planned: `plan` and `plan_prefill` put a `Gather` on the attention's wrapper, and
`decode` and `prefill` use it where there is one. Under CUDA graphs, which only decode has here, the plan of the capture
stays, and the lists it reads are filled before each replay. Prefill reads the pool only where requests have a prefix in
it that is short, or where the server was told to; else it reads what it has just computed, or gathers by itself.
"""
# torch is the server's; without it nothing in this file has a type.
# pyright: basic, reportMissingImports=false

import bisect
import inspect
import logging

import torch

from .staging import LISTED_PER_ROW, Gather, Staging

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

_log = logging.getLogger("traceql.gather_then_cast")
_STAGING = "traceql_staging"
"""Attribute of a backend: its `Staging`, or None where it works as it always did."""
_GATHER = "traceql_gather"
"""Attribute of an attention wrapper: the `Gather` of its plan, or None."""


def wraps(context):
    """What takes the place of each function, by role."""
    patch = _GatherThenCast(context)
    return {
        "init": patch.init,
        "plan": patch.plan,
        "plan_prefill": patch.plan_prefill,
        "decode": patch.decode,
        "prefill": patch.prefill,
        "admit": patch.admit,
    }


class _GatherThenCast:
    def __init__(self, context):
        self._context = context
        self._holder = context.settings["pool_holder"]
        self._fallbacks = _Fallbacks(context)

    def init(self, original):
        """The backend's constructor: gives it a staging buffer."""
        own = f"{original.__module__}.{original.__qualname__}"

        def __init__(self_, model_runner, skip_prefill=False, *args, **kwargs):  # noqa: N807
            original(self_, model_runner, skip_prefill, *args, **kwargs)
            # A derived backend decodes in its own way, and one without prefill is a draft model's.
            is_own = f"{type(self_).__module__}.{type(self_).__qualname__}.__init__" == own and not skip_prefill
            setattr(self_, _STAGING, self._staging(model_runner) if is_own else None)

        return __init__

    def plan(self, original):
        """A decode batch's plan: decides whether its rows are gathered."""
        signature = inspect.signature(original)

        def call_begin_forward(*args, **kwargs):
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            backend = call.arguments["self"].attn_backend
            staging = getattr(backend, _STAGING, None)
            if staging is None:
                return original(*args, **kwargs)
            if call.arguments["init_metadata_replay"]:
                return _replay(original, call, staging)
            return self._planned(original, call, "wrapper", staging)

        return call_begin_forward

    def plan_prefill(self, original):
        """A prefill batch's plan, likewise; one that is not going to read the pool has none to decide."""
        signature = inspect.signature(original)

        def call_begin_forward(*args, **kwargs):
            call = signature.bind(*args, **kwargs)
            call.apply_defaults()
            staging = getattr(call.arguments["self"].attn_backend, _STAGING, None)
            if staging is None or call.arguments["use_ragged"]:
                return original(*args, **kwargs)
            return self._planned(original, call, "wrapper_paged", staging)

        return call_begin_forward

    def decode(self, original):
        """One layer's decode attention."""
        return self._reading_packed(original, lambda metadata: metadata.decode_wrapper)

    def prefill(self, original):
        """One layer's prefill attention."""
        return self._reading_packed(original, lambda metadata: metadata.prefill_wrapper)

    def admit(self, original):
        """Whether a batch may be run by a CUDA graph: not one that does not fit, which is then planned eagerly."""

        def can_run(self_, forward_batch, *args, **kwargs):
            if not original(self_, forward_batch, *args, **kwargs):
                return False
            backend = getattr(self_.attn_backend, "decode_backend", self_.attn_backend)  # hybrid ones hold two
            staging = getattr(backend, _STAGING, None)
            return staging is None or staging.holds(_padded_length(self_, forward_batch))

        return can_run

    def _planned(self, original, call, name, staging):
        """Plans a batch that is run eagerly or captured; `name` is the argument that is its attention wrapper."""
        wrapper = call.arguments[name]
        setattr(wrapper, _GATHER, None)
        if self._is_gathered(call.arguments, staging):
            call.arguments[name] = _Planner(wrapper, staging, call.arguments["self"].attn_backend)
        return original(*call.args, **call.kwargs)

    def _reading_packed(self, original, wrapper_of):
        """One layer's attention: where its batch's plan says so, the pool it reads is the packed rows."""

        def forward(self_, q, k, v, layer, forward_batch, *args, **kwargs):  # noqa: PLR0917 - the release's
            gather = getattr(wrapper_of(self_.forward_metadata), _GATHER, None)
            if gather is None:
                return original(self_, q, k, v, layer, forward_batch, *args, **kwargs)
            holder = {"self": self_, "forward_batch": forward_batch}[self._holder]
            pool = holder.token_to_kv_pool
            holder.token_to_kv_pool = _PackedPool(pool, gather)
            try:
                return original(self_, q, k, v, layer, forward_batch, *args, **kwargs)
            finally:
                holder.token_to_kv_pool = pool

        return forward

    def _is_gathered(self, plan, staging):
        n_listed = plan["paged_kernel_lens_sum"]
        if plan["spec_info"] is not None:
            self._fallbacks.count("speculative decoding")
        elif not staging.holds(n_listed):
            self._fallbacks.count(f"more KV rows than the {staging.n_rows:,} that the buffer holds")
        else:
            return n_listed > 0
        return False

    def _staging(self, runner):
        """The buffer for a runner's backend; None, and a line in the report, where the patch is of no use to it."""
        if why := self._unfit(runner):
            self._context.report("off", reason=why)
            _log.warning("gather-then-cast is off: %s", why)
            return None
        config, options = runner.model_config, self._context.options
        pool = runner.token_to_kv_pool.get_key_buffer(runner.token_to_kv_pool.start_layer)
        wanted = options["share-prefixes"]
        shares = wanted == "on" or (wanted == "auto" and not runner.server_args.disable_radix_cache)
        n_requests = runner.req_to_token_pool.size
        n_listed = n_requests * (config.context_len + 1)  # and a row for each request that pads a graph's batch
        most = min(n_listed, pool.shape[0] + (0 if shares else n_requests))
        n_rows = most if options["rows"] == "auto" else int(options["rows"])
        staging = Staging(
            n_rows=n_rows,
            n_listed=min(n_listed, LISTED_PER_ROW * n_rows),
            pool=pool,
            left=config.kv_lora_rank,
            dtype=runner.dtype,
            shares=shares,
        )
        self._context.report("on", n_rows=n_rows, buffer_bytes=staging.packed.nbytes, shares_prefixes=shares)
        _log.warning("gather-then-cast is on: %d rows, %.0f MB", n_rows, staging.packed.nbytes / 1e6)
        return staging

    def _unfit(self, runner):
        """Why a runner's steps stay as they are; empty where they need not."""
        pool, config = runner.token_to_kv_pool, runner.model_config
        widths = (config.kv_lora_rank, config.qk_rope_head_dim)
        if type(pool).__name__ != "MLATokenToKVPool" or pool.dtype not in FP8:
            return f"the KV pool is {type(pool).__name__} of {pool.dtype}, not MLATokenToKVPool of FP8"
        if runner.dtype in FP8:
            return f"the model is {runner.dtype} itself"
        if any(width & (width - 1) for width in widths):
            return f"rows of {widths[0]} + {widths[1]} columns are not powers of two"
        if runner.token_to_kv_pool.get_key_buffer(pool.start_layer).shape[-1] != sum(widths):
            return f"rows have other columns than {widths[0]} + {widths[1]}"
        for name, value in self._context.server_args.items():
            if getattr(runner.server_args, name, "not an argument") != value:
                return f"the server's {name} is not {value}"
        return ""


class _Planner:
    """Stands in for an attention wrapper while a batch is planned: keeps its slots, plans with places in the buffer."""

    def __init__(self, wrapper, staging, backend):
        self._wrapper, self._staging, self._backend = wrapper, staging, backend

    def plan(self, q_indptr, kv_indptr, slots, *others):
        wrapper, staging = self._wrapper, self._staging
        count, n_rows = kv_indptr[-1:], len(slots)
        listed = slots
        if wrapper._use_cuda_graph:  # noqa: SLF001 - being captured: what the graph reads must outlive this plan
            slots = self._backend.cuda_graph_kv_indices
            slots[: len(listed)].copy_(listed)
            wrapper._kv_indices_buf = staging.positions  # noqa: SLF001
            n_rows = min(staging.n_rows, len(slots))
        if staging.shared is not None:
            staging.shared.fill(listed)
            slots, count = staging.shared.slots, staging.shared.count
        setattr(wrapper, _GATHER, Gather(staging, slots, count, n_rows))
        wrapper.plan(q_indptr, kv_indptr, staging.positions[: len(listed)], *others)


class _PackedPool:
    """The KV pool as attention sees it: what is read are the packed rows, all else is the pool's."""

    def __init__(self, pool, gather):
        self._pool, self._gather = pool, gather

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def get_key_buffer(self, layer_id):
        return self._gather(self._pool.get_key_buffer(layer_id))


class _Fallbacks:
    """Counts batches that keep the whole-pool cast; reports the 1st, 2nd, 4th, 8th... of each reason."""

    def __init__(self, context):
        self._context = context
        self._counts = {}

    def count(self, reason):
        n = self._counts[reason] = self._counts.get(reason, 0) + 1
        if n & (n - 1) == 0:
            self._context.report("fallback", reason=reason, n_batches=n)
            _log.warning("gather-then-cast: %d batches cast the whole pool: %s", n, reason)


def _replay(original, call, staging):
    """Before a graph is replayed: its slots are listed; the plan of its capture stays."""
    lists = call.arguments["fast_decode_kwargs"]
    if getattr(call.arguments["wrapper"], _GATHER, None) is None:  # captured without
        return original(*call.args, **call.kwargs)
    n_listed = int(lists["kv_indptr_cpu"][-1])
    if call.arguments["spec_info"] is not None or not staging.holds(n_listed):
        raise RuntimeError(
            f"gather-then-cast: a CUDA graph that gathers cannot run this batch of {n_listed} KV rows; "
            f"its buffer holds {staging.n_rows}"
        )
    planned = original(*call.args, **call.kwargs)
    if staging.shared is not None:
        staging.shared.fill(lists["kv_indices"][:n_listed])
    return planned


def _padded_length(runner, forward_batch):
    """Entries in a batch's list of slots once the batch is padded to the size of a captured one."""
    n_requests = forward_batch.batch_size
    n_padded = runner.capture_bs[bisect.bisect_left(runner.capture_bs, n_requests)]
    return forward_batch.seq_lens_sum + (n_padded - n_requests) * runner.seq_len_fill_value
